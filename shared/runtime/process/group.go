package process

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

// group is a process group that a host started.
type group struct {
	pgid  int
	start int64  // when its leader started, in the system's own unit; 0 when unknown
	host  string // Host.id of who started it
}

// gone reports whether no process of the group is left.
func gone(pgid int) bool {
	// As process 1 of a container the host inherits orphans; those of this group are its to bury. The leader was waited
	// for, or is not the host's child.
	for {
		if pid, err := syscall.Wait4(-pgid, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			break
		}
	}
	return errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH)
}

// waitGone waits until every group is gone, for at most the given time, and reports whether they are.
//
// This has to poll: the system tells a parent of the end of its children, and these are not its children.
func waitGone(pgids []int, within time.Duration) bool {
	pgids = slices.Clone(pgids)
	delay, patience := time.Millisecond, 20*time.Millisecond
	for end := time.Now().Add(within); ; {
		pgids = slices.DeleteFunc(pgids, func(pgid int) bool {
			// A dead process that nobody buries is gone for every purpose but kill's. Looking closely is expensive.
			return gone(pgid) || patience <= 0 && !anyAlive(pgid)
		})
		if len(pgids) == 0 {
			return true
		}
		if !time.Now().Before(end) {
			return false
		}
		time.Sleep(delay)
		patience -= delay
		delay = min(2*delay, 50*time.Millisecond)
	}
}

// endGroups sends SIGTERM to the groups and, to those still there after grace, SIGKILL. It returns those that even
// then could not be seen to end.
func endGroups(groups []group, grace time.Duration) (left []group) {
	pgids := make([]int, len(groups))
	for i, g := range groups {
		pgids[i] = g.pgid
		_ = syscall.Kill(-g.pgid, syscall.SIGTERM)
		_ = syscall.Kill(-g.pgid, syscall.SIGCONT)
	}
	if waitGone(pgids, grace) {
		return nil
	}
	for _, pgid := range pgids {
		_ = syscall.Kill(-pgid, syscall.SIGKILL)
	}
	if waitGone(pgids, goneWithin) {
		return nil
	}
	for _, g := range groups {
		if !gone(g.pgid) && anyAlive(g.pgid) {
			left = append(left, g)
		}
	}
	return left
}

// isOurs reports whether the group is the one that was started, and not a later one with the same number.
func (g group) isOurs() bool {
	if start, ok := startOf(g.pgid); ok {
		return g.start != 0 && start == g.start
	}
	// The leader is gone. While members live no other process can get its number, but another may have had it since.
	return !gone(g.pgid) && marked(g.pgid, envHost+"="+g.host)
}
