package process

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// zombieState is SZOMB of sys/proc.h.
const zombieState = 5

// selfPath is this program.
func selfPath() (string, error) { return os.Executable() }

// bootID changes with every start of the machine.
func bootID() (string, error) {
	t, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return "", fmt.Errorf("read kern.boottime: %w", err)
	}
	return fmt.Sprintf("%d.%06d", t.Sec, t.Usec), nil
}

// startOf is when a process started, in microseconds; false when there is none.
func startOf(pid int) (int64, bool) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(info.Proc.P_pid) != pid {
		return 0, false
	}
	return info.Proc.P_starttime.Sec*1e6 + int64(info.Proc.P_starttime.Usec), true
}

// anyAlive reports whether a process of the group is more than a zombie.
func anyAlive(pgid int) bool {
	infos, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", pgid)
	if err != nil {
		return true
	}
	for _, info := range infos {
		if info.Proc.P_stat != zombieState {
			return true
		}
	}
	return false
}

// marked is never certain here: other processes' environments are not open to read. What is not certainly ours lives.
func marked(int, string) bool { return false }

// groupsOf is empty here, for the same reason.
func groupsOf(string) []group { return nil }

// groupMemory is the resident memory of every process group, in bytes. The system's process list has none, so ps is
// asked, once for all groups.
func groupMemory() (map[int]int64, error) {
	out, err := exec.Command("/bin/ps", "-axo", "pgid=,rss=").Output()
	if err != nil {
		return nil, fmt.Errorf("ask ps for memory: %w", err)
	}
	used := make(map[int]int64)
	for scan := bufio.NewScanner(bytes.NewReader(out)); scan.Scan(); {
		var pgid int
		var kib int64
		if n, _ := fmt.Sscan(scan.Text(), &pgid, &kib); n == 2 {
			used[pgid] += kib << 10
		}
	}
	return used, nil
}
