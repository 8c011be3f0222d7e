// Loaded when it is asked for.

export const late = "loaded late";
