//! What a client of the admin listener changes: `POST /endpoints/drain` and `/endpoints/resume`, with
//! `?cluster=NAME&address=IP:PORT`.

use std::net::SocketAddr;
use std::sync::mpsc::sync_channel;

use serde_json::json;

use super::pages::Page;
use super::{CLIENT_TIMEOUT, Sources};
use crate::drains::{Action, Done, Order, Refusal};
use crate::events::{Changed, Event};

/// What a path does; None: it asks.
pub(super) fn action_of(path: &str) -> Option<Action> {
    match path {
        "/endpoints/drain" => Some(Action::Drain),
        "/endpoints/resume" => Some(Action::Resume),
        _ => None,
    }
}

/// Has the main thread carry an order out, and says what became of it.
pub(super) fn endpoint(action: Action, query: &str, sources: &Sources) -> Page {
    let order = match order(action, query) {
        Ok(order) => order,
        Err(why) => return Page::text("400 Bad Request", &format!("{why}\n")),
    };
    let (give, take) = sync_channel(1);
    if sources.events.send(Event::Endpoint(order.clone(), give)).is_err() {
        return Page::text("503 Service Unavailable", "this process is about to end\n");
    }
    match take.recv_timeout(CLIENT_TIMEOUT) {
        Ok(Ok(changed)) => told(&order, changed),
        Ok(Err(refusal)) => {
            let status = match refusal {
                Refusal::NoCluster { .. } | Refusal::NoEndpoint { .. } => "404 Not Found",
                Refusal::TooMany | Refusal::Ending => "409 Conflict",
            };
            Page::text(status, &format!("{refusal}\n"))
        }
        Err(_busy) => Page::text(
            "504 Gateway Timeout",
            "the process is busy with a reload and may still obey: look at /clusters before asking again\n",
        ),
    }
}

fn told(order: &Order, changed: Changed) -> Page {
    let state = match order.action {
        Action::Drain => "drained",
        Action::Resume => "as configured",
    };
    Page::json(&json!({
        "cluster": order.cluster,
        "address": order.address.to_string(),
        "state": state,
        "changed": changed.done == Done::Changed,
        "endpoints_left": changed.left,
    }))
}

fn order(action: Action, query: &str) -> Result<Order, String> {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let cluster = value("cluster").filter(|name| !name.is_empty()).ok_or("`cluster` is missing")?;
    let text = value("address").ok_or("`address` is missing")?;
    let address: SocketAddr =
        text.parse().map_err(|error| format!("`address` {text:?}: IP:PORT is wanted ({error})"))?;
    Ok(Order { action, cluster: cluster.to_owned(), address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_or_the_fault_is_named() {
        let read = |query| order(Action::Drain, query);
        let wanted =
            Order { action: Action::Drain, cluster: "app/u".to_owned(), address: ([10, 0, 0, 1], 80).into() };
        assert_eq!(read("cluster=app/u&address=10.0.0.1:80"), Ok(wanted.clone()));
        assert_eq!(read("address=10.0.0.1:80&x=&cluster=app/u"), Ok(wanted));
        assert!(read("cluster=u&address=[::1]:80").is_ok());
        for (query, fault) in [
            ("", "`cluster` is missing"),
            ("cluster=&address=10.0.0.1:80", "`cluster` is missing"),
            ("cluster=u", "`address` is missing"),
            ("cluster=u&address=backend:80", "`address` \"backend:80\": IP:PORT is wanted"),
        ] {
            assert!(read(query).is_err_and(|why| why.starts_with(fault)), "{query}");
        }
    }
}
