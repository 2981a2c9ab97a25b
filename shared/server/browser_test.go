package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/run"
)

// browser is a headless Chromium that is driven through its pipe: messages of its DevTools protocol, each ended by a
// zero byte.
type browser struct {
	t       *testing.T
	to      io.Writer
	from    *bufio.Reader
	id      int
	session string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "headless_shell"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no chromium, chromium-browser, google-chrome or headless_shell on the path: the page is not tried in a browser")
	}
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{in, out} // 3 and 4, by the protocol
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Close(), out.Close()
	_ = from.SetReadDeadline(time.Now().Add(time.Minute))
	b := &browser{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		b.call("Browser.close", nil) // all of its processes go, and with them what they write
		_, _ = to.Close(), cmd.Wait()
		_ = from.Close()
	})
	var target struct{ TargetID string }
	b.into(b.call("Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var session struct{ SessionID string }
	b.into(b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &session)
	b.session = session.SessionID
	b.call("Page.enable", nil)
	return b
}

func (b *browser) into(raw json.RawMessage, v any) {
	b.t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		b.t.Fatal(err)
	}
}

// message reads the next message.
func (b *browser) message() (m struct {
	ID     int
	Method string
	Result json.RawMessage
	Error  *struct{ Message string }
}) {
	b.t.Helper()
	raw, err := b.from.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("the browser says nothing more: %v", err)
	}
	b.into(raw[:len(raw)-1], &m)
	return m
}

// call waits for the answer of a command. Events in between are passed over.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.id++
	m := map[string]any{"id": b.id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" && !strings.HasPrefix(method, "Browser.") {
		m["sessionId"] = b.session
	}
	raw, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(raw, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		if got := b.message(); got.ID == b.id {
			if got.Error != nil {
				b.t.Fatalf("%s: %s", method, got.Error.Message)
			}
			return got.Result
		}
	}
}

// load does what leads to another page and waits until that is there.
func (b *browser) load(method string, params any) {
	b.t.Helper()
	b.call(method, params)
	for b.message().Method != "Page.loadEventFired" {
	}
}

// eval gives the value of an expression of the page, as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	b.into(b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}), &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %v", expression, out.ExceptionDetails)
	}
	return fmt.Sprint(out.Result.Value)
}

func TestAPersonDecidesInTheBrowser(t *testing.T) {
	b := newBrowser(t)
	s := newSite(t)
	g := s.ask("r1", "acme")
	// 1. From the list to the gate.
	b.load("Page.navigate", map[string]any{"url": s.url + "/gates"})
	if got := b.eval(`document.querySelector("main a[href^='/gates/']:not([href*='?'])").textContent`); got != "Pay ACME" {
		t.Fatalf("the list has %q", got)
	}
	b.load("Runtime.evaluate", map[string]any{"expression": `document.querySelector("main table a").click()`})
	text := b.eval(`document.querySelector("main").innerText`)
	for _, want := range []string{"Pay ACME", "rita", "12.5", g.ActionHash, "Cost so far"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page shows no %q:\n%s", want, text)
		}
	}
	if s.plane.gates[g.ID].State != run.GateOpen {
		t.Fatal("looking at it decided it")
	}
	// 2. The form, and the page after it.
	b.eval(`document.querySelector("input[name=as]").value = "ann"; document.querySelector("textarea[name=comment]").value = "looks right"`)
	b.load("Runtime.evaluate", map[string]any{"expression": `document.querySelector("button[value=approve]").click()`})
	if got := s.plane.gates[g.ID]; got.State != run.GateApproved || got.Decisions[0].By != "ann" || got.Decisions[0].Comment != "looks right" {
		t.Errorf("the gate is %s: %+v", got.State, got.Decisions)
	}
	if got := b.eval(`location.pathname + " " + document.querySelectorAll("form").length`); got != "/gates/"+g.ID+" 0" {
		t.Errorf("afterwards the browser is at %s", got)
	}
	if text := b.eval(`document.querySelector("main").innerText`); !strings.Contains(text, "looks right") || !strings.Contains(text, "approved") {
		t.Errorf("afterwards the page shows:\n%s", text)
	}
}

// press types a key.
func (b *browser) press(key string, code int) {
	b.t.Helper()
	text := key
	if key == "Enter" {
		text = "\r"
	}
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text})
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code})
}

func TestEnterInAFieldDecidesNothing(t *testing.T) {
	b := newBrowser(t)
	s := newSite(t)
	g := s.ask("r1", "acme", func(q *run.GateAsk) { q.Diff = "" })
	for _, path := range []string{"/gates/" + g.ID, "/gates"} {
		b.load("Page.navigate", map[string]any{"url": s.url + path})
		b.eval(`window.sent = 0; document.addEventListener("submit", e => { window.sent++; e.preventDefault() }); document.querySelector("input[name=as]").focus()`)
		b.press("Enter", 13)
		if got := b.eval(`window.sent`); got != "0" {
			t.Errorf("%s: Enter in a field sends the form", path)
		}
		// With the button in focus it does.
		b.eval(`document.querySelector("button[value=reject]").focus()`)
		b.press("Enter", 13)
		if got := b.eval(`window.sent`); got != "1" {
			t.Errorf("%s: Enter on a button sends the form %s times", path, got)
		}
	}
}

func TestManyGatesAreDecidedInTheBrowser(t *testing.T) {
	b := newBrowser(t)
	s := newSite(t)
	plain := func(q *run.GateAsk) { q.Diff = "" }
	first, second, third := s.ask("r1", "acme", plain), s.ask("r2", "acme", plain), s.ask("r3", "acme", plain)
	b.load("Page.navigate", map[string]any{"url": s.url + "/gates"})
	pick := func(g *run.Gate) {
		b.eval(`document.querySelector("input[value^='` + g.ID + ` ']").focus()`)
		b.press(" ", 32)
	}
	pick(first)
	pick(third)
	b.eval(`document.querySelector("input[name=as]").value = "ann"`)
	b.load("Runtime.evaluate", map[string]any{"expression": `document.querySelector("button[value=approve]").click()`})
	if text := b.eval(`document.querySelector("main").innerText`); strings.Count(text, "counts") != 2 {
		t.Errorf("afterwards the page shows:\n%s", text)
	}
	for g, want := range map[*run.Gate]run.GateState{first: run.GateApproved, second: run.GateOpen, third: run.GateApproved} {
		if got := s.plane.gates[g.ID].State; got != want {
			t.Errorf("the gate of %s is %s, want %s", g.Run, got, want)
		}
	}
}

// TestHostileTextStaysText shows what people and agents may write, on every page that has it.
func TestHostileTextStaysText(t *testing.T) {
	const bad = `</pre></title></textarea><img src=x onerror="window.hit=1"><script>window.hit=1</script>` + "\u202e0005 RUE"
	b := newBrowser(t)
	s := newSite(t)
	g := s.ask("r1", "acme", func(q *run.GateAsk) {
		q.Title, q.Diff, q.Approvers, q.NotRequester = bad+strings.Repeat("W", 300), "", []string{"user:" + bad}, false
		q.Action, q.Context = mustJSON(t, map[string]any{"pay": bad, bad: []string{bad}, "long": strings.Repeat("W", 900-8*len(bad)/4)}), mustJSON(t, bad)
	})
	s.plane.runs["r1"].Input.Inline = mustJSON(t, map[string]string{"text": bad + strings.Repeat("<W>", 1<<20/3)})
	s.plane.log("r1", bad+strings.Repeat("W", 500))
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": true})
	look := func(name string) {
		t.Helper()
		if got := b.eval(`String(window.hit) + document.querySelectorAll("main script, main img").length`); got != "undefined0" {
			t.Errorf("%s: what was written acts: %s", name, got)
		}
		if got := b.eval(`document.documentElement.outerHTML.includes("\u202e")`); got != "false" {
			t.Errorf("%s: text is turned without showing it", name)
		}
		if got := b.eval(`document.documentElement.scrollWidth <= 390 && document.documentElement.outerHTML.length < 600000`); got != "true" {
			t.Errorf("%s: wider than the screen, or too large: %s", name, b.eval(`document.documentElement.scrollWidth + " wide, " + document.documentElement.outerHTML.length + " characters"`))
		}
	}
	for _, path := range []string{"/gates", "/gates/" + g.ID, "/runs/r1", "/"} {
		b.load("Page.navigate", map[string]any{"url": s.url + path})
		if text := b.eval(`document.body.innerText`); path != "/" && !strings.Contains(text, `<script>window.hit=1</script>\u202e0005 RUE`) {
			t.Errorf("%s: it is not shown as it was written:\n%.2000s", path, text)
		}
		look(path)
	}
	// And what is said about it.
	b.load("Page.navigate", map[string]any{"url": s.url + "/gates/" + g.ID})
	b.eval(`document.querySelector("input[name=as]").value = "ann"; document.querySelector("textarea").value = "<script>window.hit=1</script>"`)
	b.load("Runtime.evaluate", map[string]any{"expression": `document.querySelector("button[value=reject]").click()`})
	look("an answer that does not count")
	if text := b.eval(`document.querySelector("[role=alert]").innerText + document.querySelector("textarea").value`); !strings.Contains(text, "none of those who may decide") || !strings.Contains(text, "<script>") {
		t.Errorf("the answer of a stranger: %s", text)
	}
}

func mustJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
