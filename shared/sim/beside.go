package sim

import (
	"bytes"
	"encoding/json"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// What is kept beside runs: sessions and logs.

// session is what one is known to be.
type session struct {
	state []byte
	last  string // the worker that was handed its last turn
	turn  string // that attempt
	by    *process
	boots int // of that process then
}

func sessionOf(r *run.Record) string {
	if r.Session == "" {
		return ""
	}
	return r.Tenant + "/" + r.Agent + "/" + r.Session
}

// turn: an attempt is handed over with its session as it was left.
func (l *ledger) turn(p *process, x *worker, a *runtime.Assignment, r *run.Record) {
	key := sessionOf(r)
	if key == "" {
		return
	}
	s := l.sessions[key]
	if s == nil {
		s = &session{}
		l.sessions[key] = s
	}
	if !bytes.Equal(s.state, a.State) {
		l.w.fail("a turn begins with what the last one left", "attempt %s gets %s, session %s is %s", a.ID(), a.State, key, s.state)
	}
	l.w.saw("turn of a session")
	s.last, s.turn, s.by, s.boots = "", a.ID(), p, p.boots
	if x != nil {
		s.last = x.id
	}
}

// wroteSession: a session changes with the end of a turn, or by a snapshot of the worker that took the last one.
func (l *ledger) wroteSession(p *process, u *store.Unit, d *store.Write) {
	s := l.sessions[d.ID]
	if s == nil && l.w.temper.two { // another process had ended the turn before it was handed over
		s = &session{}
		l.sessions[d.ID] = s
	}
	if s == nil {
		l.w.fail("a session belongs to a turn", "session %s", d.ID)
	}
	ends := false
	for i := range u.Writes {
		ends = ends || u.Writes[i].Kind == store.KindRun
	}
	if !ends {
		for _, k := range l.runs {
			if k.rec.Live() && sessionOf(k.rec) == d.ID && !l.w.temper.two {
				l.w.fail("a snapshot does not undo a turn", "session %s, while run %s has the turn", d.ID, k.rec.ID)
			}
		}
		if l.snapping == "" || s.last != l.snapping && !l.w.temper.two {
			l.w.fail("a snapshot is of who took the last turn", "session %s by %q, the last turn was of %q", d.ID, l.snapping, s.last)
		}
		l.w.saw("snapshot of a session kept")
		s.turn = "" // what it left is not the newest any more
	}
	s.state = bytes.Clone(d.Body)
}

// logOf is what a bound of logs is for: an attempt, as one start of one process has seen it.
type logOf struct {
	run   string
	n     int
	p     *process
	boots int
}

// wroteLog adds up what is kept of an attempt's logs.
func (l *ledger) wroteLog(p *process, d *store.Write) {
	var lines []runtime.LogLine
	if err := json.Unmarshal(d.Body, &lines); err != nil || len(lines) == 0 {
		l.w.fail("logs can be read", "%s: %v", d.ID, err)
	}
	of := logOf{d.Owner, lines[0].N, p, p.boots}
	for _, line := range lines {
		if l.logged[of] += len(line.Text); len(line.Text) > runtime.MaxLogLine {
			l.w.fail("a line of log is bounded", "one of %d bytes of run %s", len(line.Text), d.Owner)
		}
		if line.Stream == "errand" {
			l.w.saw("log cut")
		}
	}
	if l.logged[of] > runtime.MaxLogBytes+200 { // and the line that says that it is cut
		l.w.fail("the log of an attempt is bounded", "%d bytes of run %s", l.logged[of], d.Owner)
	}
}
