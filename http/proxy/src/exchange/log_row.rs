//! The access log line of an exchange: sampled, formatted on this core, written elsewhere.

use core_runtime::clock;
use http_wire::fields::FieldId;
use http_wire::trace::TraceParent;

use super::Exchange;
use crate::record::{LogRow, protocol_name, should_log, write_json};
use crate::snapshot::ListenerConfig;

impl Exchange<'_> {
    pub(super) fn log(&self, listener: &ListenerConfig) {
        let (Some(config), true) = (&listener.access_log, self.core.log.is_on()) else { return };
        if !should_log(&self.outcome, config.success_sample, self.core.random()) {
            return;
        }
        let head = &self.request.head;
        let route = self.routed.and_then(|index| listener.routes.route(index));
        let trace =
            head.fields.get(FieldId::Traceparent).and_then(TraceParent::parse).map(TraceParent::to_bytes);
        let tls = self.conn.tls.as_ref();
        let row = LogRow {
            time_unix_ms: u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX),
            outcome: &self.outcome,
            core: u16::try_from(self.core.index).unwrap_or(u16::MAX),
            request_id: self.request_id.as_bytes(),
            // version "-" trace-id "-" …: 32 hexadecimal digits from the third byte on.
            trace_id: trace.as_ref().and_then(|bytes| bytes.get(3..35)),
            client: self.client_ip(),
            listener: &listener.name,
            route: route.map(|route| route.name.as_str()),
            cluster: self.target.as_ref().map(|(settings, _)| settings.config().name.as_str()),
            endpoint: self.target.as_ref().map(|(_, address)| *address),
            protocol: protocol_name(self.outcome.protocol),
            method: head.method_token(),
            host: self.asked.as_ref().map_or(head.authority(), |asked| &asked.host),
            path: self.asked.as_ref().map_or(head.path(), |asked| &asked.path),
            query: head.query(),
            user_agent: head.fields.get(FieldId::UserAgent),
            referer: head.fields.get_name(b"referer"),
            tls_version: tls.map(|tls| tls.version),
            tls_cipher: tls.map(|tls| tls.cipher),
            server_name: tls.and_then(|tls| tls.server_name.as_deref()).map(str::as_bytes),
            detail: None,
        };
        self.core.log.row(config.sink, |out| match &config.template {
            Some(template) => template.write(out, &row),
            None => write_json(out, &row),
        });
    }
}
