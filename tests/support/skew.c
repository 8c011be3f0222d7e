/* Preloaded into a node: its wall clock is off by the seconds in the file SKEW_FILE, or by SKEW_S.
   The clock that counts its rights stands still while the file STILL_FILE exists, and is an hour ahead
   while AHEAD_FILE does, as after a sleep of the machine. Its other clocks are right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew(void) {
  const char *path = getenv("SKEW_FILE");
  if (!path) {
    const char *text = getenv("SKEW_S");
    return text ? atol(text) : 0;
  }
  char text[32];
  int file = open(path, O_RDONLY);
  ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  text[got < 0 ? 0 : got] = 0;
  return atol(text);
}

/* Since when it stands, in nanoseconds; 0: it does not. */
static long stands_at;

static int is_there(const char *variable) {
  const char *path = getenv(variable);
  return path && access(path, F_OK) == 0;
}

static void count(struct timespec *now) {
  if (is_there("AHEAD_FILE")) now->tv_sec += 3600;
  if (!is_there("STILL_FILE")) return;
  long reading = now->tv_sec * 1000000000 + now->tv_nsec, none = 0;
  if (!__atomic_compare_exchange_n(&stands_at, &none, reading, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) reading = none;
  now->tv_sec = reading / 1000000000;
  now->tv_nsec = reading % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_BOOTTIME) count(now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  int result = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return result;
}

time_t time(time_t *out) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (out) *out = precise.tv_sec;
  return precise.tv_sec;
}
