//! Calls of orchestrators to the CSI driver.

use bulkhead_core::error::Code;
use bulkhead_csi::capacity::Range;
use bulkhead_csi::proto::{CreateVolumeRequest, ListVolumesRequest, NodePublishVolumeRequest};
use bulkhead_csi::{capability, names, parameters};
use prost::Message as _;

/// Reads a call of each kind. What is accepted is in range, and an error is one of the request.
pub fn csi(bytes: &[u8]) {
    if let Ok(request) = CreateVolumeRequest::decode(bytes) {
        create(&request);
    }
    if let Ok(request) = ListVolumesRequest::decode(bytes)
        && let Ok(Some(last)) = names::parse_token(&request.starting_token)
    {
        assert_eq!(names::token(&last), request.starting_token, "a token was accepted that is never given");
    }
    if let Ok(request) = NodePublishVolumeRequest::decode(bytes) {
        if let Some(capability) = &request.volume_capability {
            let _ = capability::Use::parse(capability);
        }
        if let Ok(Some(volume)) = names::parse_id("volume_id", &request.volume_id) {
            assert_eq!(names::id(&volume), request.volume_id, "an id was accepted that is never given");
        }
    }
}

fn create(request: &CreateVolumeRequest) {
    match names::of_volume(&request.name) {
        Ok(name) => assert_eq!(names::of_volume(&request.name), Ok(name), "a repeated request has another name"),
        Err(fault) => assert!(request.name.is_empty() && fault.code == Code::InvalidArgument, "{fault}"),
    }
    match Range::parse(request.capacity_range.as_ref()) {
        Ok(range) => assert!(range.limit.is_none_or(|limit| limit >= range.required), "{range:?}"),
        Err(fault) => assert_eq!(fault.code, Code::InvalidArgument, "{fault}"),
    }
    if let Err(fault) = capability::check(&request.volume_capabilities) {
        assert_eq!((fault.code, fault.object.as_str()), (Code::InvalidArgument, "volume_capability"));
    }
    if let Err(fault) = parameters::parse(&request.parameters, &request.mutable_parameters) {
        let mut keys = request.parameters.keys().chain(request.mutable_parameters.keys());
        assert!(keys.any(|key| fault.object == format!("parameter {key:?}")), "{fault} names none of the parameters");
    }
}
