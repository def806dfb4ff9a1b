//! Drives headless Chromium through the pipe of its DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The names of the program; the first is Debian's.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: String,
    number: u64,
    /// The addresses that the page requested, the errors that it threw, and the requests that its policy
    /// refused.
    pub(crate) requested: Vec<String>,
    pub(crate) errors: Vec<String>,
    _profile: TempDir,
}

/// Finds the browser's program. Without one, the tests of the page are skipped, unless
/// `MILLPOND_REQUIRE_CHROMIUM` is 1.
fn program() -> Option<&'static str> {
    let found = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let program = NAMES.into_iter().find(found);
    if program.is_none() {
        let is_required = std::env::var("MILLPOND_REQUIRE_CHROMIUM").is_ok_and(|value| value == "1");
        assert!(!is_required, "no Chromium: apt-get install chromium");
        eprintln!("SKIPPED: no Chromium; apt-get install chromium");
    }
    program
}

impl Browser {
    /// Starts the browser; `None` if there is none.
    pub(crate) fn start() -> Option<Self> {
        let program = program()?;
        let profile = TempDir::new().unwrap();
        // The protocol uses the file descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 1>&2 2>/dev/null", program])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .args(["--disable-background-networking", "--no-first-run", "--window-size=1200,1000"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let (session, errors, requested) = (String::new(), Vec::new(), Vec::new());
        let mut browser =
            Self { child, requests, answers, session, number: 0, requested, errors, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol, and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.requests.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = Vec::new();
            self.answers.read_until(0, &mut answer).unwrap();
            assert_eq!(answer.pop(), Some(0), "the browser ended");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.requested.push(params["request"]["url"].as_str().unwrap().to_owned());
            }
            Some("Runtime.exceptionThrown") => self.errors.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.errors.push(params["entry"]["text"].to_string());
            }
            _ => {}
        }
    }

    /// Opens a page, and waits until its script has drawn it.
    pub(crate) fn open(&mut self, page: &Path) {
        self.open_link(page, "");
    }

    /// Opens a page with a text behind its address.
    pub(crate) fn open_link(&mut self, page: &Path, link: &str) {
        self.call("Page.navigate", json!({"url": format!("file://{}{link}", page.display())}));
        let ready = "new Promise(done => { const look = () => \
                     document.body?.dataset.ready || /cannot be shown/.test(document.body?.innerText) \
                     ? done(readout.textContent) : setTimeout(look, 10); look(); })";
        let said = self.evaluate(ready);
        assert!(!said.as_str().unwrap().contains("cannot be shown"), "{said}");
    }

    /// Returns the value of an expression in the page, or of its promise.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub(crate) fn number(&mut self, expression: &str) -> f64 {
        self.evaluate(expression).as_f64().unwrap_or_else(|| panic!("{expression} is no number"))
    }

    pub(crate) fn text(&mut self, expression: &str) -> String {
        self.evaluate(expression).as_str().unwrap_or_else(|| panic!("{expression} is no text")).to_owned()
    }

    /// Scrolls an element into sight; returns its middle, moved by shares of its size.
    pub(crate) fn place(&mut self, selector: &str, by: (f64, f64)) -> (f64, f64) {
        let place = self.evaluate(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); \
             e.scrollIntoView({{block: 'center'}}); \
             const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})()"
        ));
        let [x, y, width, height] = [0, 1, 2, 3].map(|at| place[at].as_f64().unwrap());
        (x + width * (0.5 + by.0), y + height * (0.5 + by.1))
    }

    pub(crate) fn mouse(&mut self, kind: &str, (x, y): (f64, f64), more: Value) {
        let mut params = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.call("Input.dispatchMouseEvent", params);
    }

    pub(crate) fn click(&mut self, place: (f64, f64)) {
        self.mouse("mousePressed", place, json!({}));
        self.mouse("mouseReleased", place, json!({}));
    }

    pub(crate) fn key(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        self.call("Input.dispatchKeyEvent", json!({"type": "keyDown", "key": key, "text": text}));
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
