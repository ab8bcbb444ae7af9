//! `shardctl explain`: what a reason code means, or what happens to a request.

mod request;
mod walk;

use std::path::Path;

use http_proxy::reason::Reason;

use crate::args::{Args, UsageError};
use crate::config::{self, Config};
use crate::outcome::{Code, Outcome};
use request::Question;
use walk::End;

pub(crate) const HELP: &str = "\
Usage: shardctl explain CODE
       shardctl explain METHOD URL [-H NAME:VALUE]... --config DIR

The first form tells what a reason code (in logs, metrics and error bodies) means and what to do.
The second follows one request through a configuration directory: raw path, normalised path,
listener, virtual host, the rules that were tried, route, cluster and policies.

Options:
  --config DIR       The configuration directory
  -H NAME:VALUE      A request header; may be given more than once

Exit code: 0 explained, 1 no such code, an error in the configuration, or no route takes the
request; 64 wrong usage.
";

/// Runs the command.
///
/// # Errors
/// `UsageError` for a wrong argument.
pub(crate) fn run(mut args: Args) -> Result<Outcome, UsageError> {
    let directory = args.value("--config")?;
    let fields = args.values("-H")?;
    let first = args
        .positional()
        .ok_or_else(|| UsageError::new("a reason code, or a method and a URL, is missing"))?;
    let url = args.positional();
    args.finish()?;
    match (url, directory) {
        (None, None) if fields.is_empty() => Ok(reason(&first)),
        (None, _) => Err(UsageError::new("the URL is missing")),
        (Some(_), None) => Err(UsageError::new("--config DIR is missing")),
        (Some(url), Some(directory)) => {
            let question = Question::new(first, url, &fields)?;
            Ok(match config::load(Path::new(&directory)) {
                Ok(config) => follow(&config, &question),
                Err(errors) => {
                    let lines: String = errors.iter().map(|error| format!("{error}\n")).collect();
                    Outcome { code: Code::Failure, out: Vec::new(), err: lines }
                }
            })
        }
    }
}

fn reason(code: &str) -> Outcome {
    let Some(reason) = Reason::from_code(code) else {
        return Outcome::complaint(Code::Failure, &no_such_code(code));
    };
    let status = reason.status().map_or_else(|| "none: no reply is possible".to_owned(), |s| s.to_string());
    Outcome::text(format!(
        "code        {}\ntitle       {}\nstatus      {status}\ngrpc-status {}\n\n{}\n",
        reason.code(),
        reason.title(),
        reason.grpc_status().number(),
        reason.explanation(),
    ))
}

/// Names the codes that share a word with the wrong one.
fn no_such_code(code: &str) -> String {
    let words: Vec<_> = code.split('_').filter(|word| word.len() > 2).collect();
    let near: Vec<_> = Reason::ALL
        .iter()
        .map(|reason| reason.code())
        .filter(|known| known.split('_').any(|word| words.contains(&word)))
        .collect();
    if near.is_empty() {
        format!("no reason has the code {code}; docs/reason-codes.md lists them")
    } else {
        format!("no reason has the code {code}; near it: {}", near.join(", "))
    }
}

fn follow(config: &Config, question: &Question) -> Outcome {
    let mut text = String::new();
    let origin = |route: &str| config.sources.get(&format!("route:{route}")).map(config::shown);
    let code = match walk::walk(&config.snapshot, question, &origin, &mut text) {
        End::Routed => Code::Success,
        End::Answered | End::NoListener => Code::Failure,
    };
    Outcome { code, out: text.into_bytes(), err: String::new() }
}

#[cfg(test)]
mod tests {
    use http_proxy::reason::Reason;

    use super::{no_such_code, reason};
    use crate::outcome::Code;

    #[test]
    fn every_code_is_explained() {
        for known in Reason::ALL {
            let outcome = reason(known.code());
            assert_eq!(outcome.code, Code::Success);
            let text = String::from_utf8(outcome.out).expect("text");
            assert!(text.contains(known.title()) && text.contains(known.explanation()), "{text}");
        }
    }

    #[test]
    fn a_wrong_code_is_answered_with_near_ones() {
        assert_eq!(reason("nonsense").code, Code::Failure);
        assert!(no_such_code("host_unknown_x").contains("host_missing"));
        assert!(no_such_code("zzz").contains("docs/reason-codes.md"));
    }
}
