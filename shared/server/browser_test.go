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
	b.eval(`document.querySelector("input[name=as]").value = "ann"; document.querySelector("input[name=comment]").value = "looks right"`)
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
