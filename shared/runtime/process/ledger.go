package process

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ledger is a file of the groups that run now. A dead host's is read by the next one, which ends what it finds.
//
// The file is slots of one size. The first names the format and the boot of the machine, without which no process id
// means anything; each other is a group or blank. It needs no flush to disk: it must survive the host, not the machine.
// A nil ledger remembers nothing.
type ledger struct {
	mu   sync.Mutex
	file *os.File
	used map[int]int // pgid → slot
	free []int
	size int // slots, the first included
}

const (
	slotBytes   = 64
	maxSlots    = 1 << 16
	ledgerTitle = "errand-processes-1"
)

// openLedger takes the ledger for this process and ends what its last user left running.
func openLedger(path string, grace time.Duration, log *slog.Logger) (_ *ledger, err error) {
	fail := func(err error) (*ledger, error) { return nil, fmt.Errorf("open the process ledger %s: %w", path, err) }
	// 1. Only one host may use it: another's live programs must not be taken for leftovers.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another running errand uses it; stop that one first, or choose another data file")
		}
		return fail(err)
	}
	// 2. End what is left of this boot.
	boot, err := bootID()
	if err != nil {
		return fail(err)
	}
	groups, err := readLedger(file, boot, log)
	if err != nil {
		return fail(err)
	}
	var ours []group
	for _, g := range groups {
		if g.isOurs() {
			ours = append(ours, g)
		}
	}
	if len(ours) > 0 {
		log.Warn("ending processes that an earlier errand left running", "groups", len(ours))
	}
	for _, g := range endGroups(ours, grace) {
		log.Error("a process that an earlier errand left running does not end", "pid", g.pgid)
	}
	// 3. Begin anew.
	if err = file.Truncate(0); err == nil {
		_, err = file.WriteAt(slot(ledgerTitle+" "+boot), 0)
	}
	if err != nil {
		return fail(err)
	}
	return &ledger{file: file, used: make(map[int]int), size: 1}, nil
}

// readLedger returns the groups of the given boot. What does not parse is no group: a host that died while it wrote.
func readLedger(r io.Reader, boot string, log *slog.Logger) ([]group, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxSlots*slotBytes))
	if err != nil {
		return nil, err
	}
	if len(content) == 0 {
		return nil, nil
	}
	if !strings.HasPrefix(string(content), ledgerTitle+" ") {
		return nil, errors.New("it is a file of another kind; move it away, or choose another data file")
	}
	if string(slot(ledgerTitle+" "+boot)) != string(content[:min(slotBytes, len(content))]) {
		return nil, nil
	}
	var groups []group
	for rest := content[slotBytes:]; len(rest) >= slotBytes; rest = rest[slotBytes:] {
		text := strings.TrimSpace(string(rest[:slotBytes]))
		if text == "" {
			continue
		}
		g, err := parseGroup(text)
		if err != nil {
			log.Warn("an entry of the process ledger is unreadable", "entry", text)
			continue
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func slot(text string) []byte { return fmt.Appendf(nil, "%-*.*s\n", slotBytes-1, slotBytes-1, text) }

func (g group) String() string { return fmt.Sprintf("%d %d %s", g.pgid, g.start, g.host) }

func parseGroup(text string) (g group, err error) {
	if _, err := fmt.Sscanf(text, "%d %d %s", &g.pgid, &g.start, &g.host); err != nil {
		return group{}, fmt.Errorf("%.80q: want PID START HOST", text)
	}
	// Signals to group 1 or less would reach far more than one group.
	if g.pgid <= 1 {
		return group{}, fmt.Errorf("%.80q: no program has process id %d", text, g.pgid)
	}
	return g, nil
}

func (l *ledger) add(g group) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.size
	if n := len(l.free); n > 0 {
		at = l.free[n-1]
	}
	if at >= maxSlots {
		return fmt.Errorf("record process %d: %d processes run already", g.pgid, maxSlots-1)
	}
	if _, err := l.file.WriteAt(slot(g.String()), int64(at)*slotBytes); err != nil {
		return fmt.Errorf("record process %d: %w", g.pgid, err)
	}
	if at == l.size {
		l.size++
	} else {
		l.free = l.free[:len(l.free)-1]
	}
	l.used[g.pgid] = at
	return nil
}

func (l *ledger) remove(pgid int) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.used[pgid]
	if !ok {
		return nil
	}
	if _, err := l.file.WriteAt(slot(""), int64(at)*slotBytes); err != nil {
		return err
	}
	delete(l.used, pgid)
	l.free = append(l.free, at)
	return nil
}

func (l *ledger) close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
