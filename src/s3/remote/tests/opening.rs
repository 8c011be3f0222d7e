//! What the environment makes of a bucket.

use celld_rt::http_client::Origin;

use super::super::refuse_proxy;

#[test]
fn a_proxy_that_would_be_used_is_refused_and_others_are_not() {
    let origin = |text: &str| Origin::of(&text.parse().expect("a URI")).expect("an origin");
    let check = |url: &str, set: &[(&str, &str)]| {
        refuse_proxy(&origin(url), |name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    };
    let proxy = ("HTTPS_PROXY", "http://p:3128");
    assert!(check("https://a.example.com", &[proxy]).is_err());
    assert!(check("https://a.example.com", &[]).is_ok());
    assert!(check("https://a.example.com", &[("HTTPS_PROXY", "")]).is_ok());
    assert!(check("http://a.example.com", &[proxy]).is_ok());
    assert!(check("http://a.example.com", &[("http_proxy", "p")]).is_err());
    assert!(check("https://127.0.0.1:1", &[proxy]).is_ok());
    for (except, refused) in
        [("example.com", false), (".example.com", false), ("*", false), ("ample.com", true)]
    {
        let found = check("https://a.example.com", &[proxy, ("NO_PROXY", except)]);
        assert_eq!(found.is_err(), refused, "{except}");
    }
}
