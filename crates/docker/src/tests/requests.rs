//! The protocol itself: its bytes, and requests that are none.

use serde_json::json;

use super::Stack;
use crate::server::MAX_BODY_BYTES;

#[tokio::test]
async fn the_handshake_is_docker_s() {
    let stack = Stack::start_without_pools().await;
    assert_eq!(stack.raw("/Plugin.Activate", "").await, (200, json!({ "Implements": ["VolumeDriver"] })));
    let scope = json!({ "Capabilities": { "Scope": "local" } });
    assert_eq!(stack.raw("/VolumeDriver.Capabilities", "").await, (200, scope));
    assert_eq!(stack.raw("/VolumeDriver.List", "").await, (200, json!({ "Volumes": [], "Err": "" })));
}

#[tokio::test]
async fn fields_that_are_absent_null_or_unknown_do_no_harm() {
    let stack = Stack::start().await;
    for body in [r#"{"Name":"a"}"#, r#"{"Name":"a","Opts":null}"#, r#"{"Name":"a","Opts":{},"Later":[1]}"#] {
        assert_eq!(stack.raw("/VolumeDriver.Create", body).await, (200, json!({ "Err": "" })));
    }
}

#[tokio::test]
async fn requests_that_are_none_are_refused_and_the_plugin_goes_on() {
    let stack = Stack::start().await;
    let deep = "[".repeat(10_000);
    for body in ["", "{", "null", "[]", "{}", r#"{"Name":7}"#, r#"{"Name":"a","Opts":{"size":7}}"#, "\u{fffd}", &deep] {
        let (status, answer) = stack.raw("/VolumeDriver.Create", body).await;
        let error = answer["Err"].as_str().unwrap();
        assert!(status == 500 && error.starts_with("request: its body is malformed"), "{body}: {error}");
    }
    let (status, answer) = stack.raw("/VolumeDriver.Create", vec![b' '; MAX_BODY_BYTES + 1]).await;
    let error = answer["Err"].as_str().unwrap();
    assert!(status == 500 && error.contains("limit 65536 bytes"), "{error}");
    for path in ["/", "/VolumeDriver.Create/", "/VolumeDriver.Destroy", "/v1/volumes"] {
        let (status, answer) = stack.raw(path, "{}").await;
        let error = answer["Err"].as_str().unwrap();
        assert!(status == 404 && error.ends_with("is not a request of the volume plugin protocol"), "{error}");
    }
    let exchange = stack.engine.exchange(hyper::Method::GET, "/VolumeDriver.List", Vec::new(), None);
    assert_eq!(exchange.await.unwrap().0.as_u16(), 405);
    stack.create("a", &[]).await.unwrap();
}
