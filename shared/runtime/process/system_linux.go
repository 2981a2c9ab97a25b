package process

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// selfPath is this program, even when its file was replaced since.
func selfPath() (string, error) { return "/proc/self/exe", nil }

// bootID changes with every start of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// stat is what /proc/PID/stat tells.
type stat struct {
	zombie bool
	pgid   int
	start  int64 // clock ticks since boot
	rss    int64 // bytes
}

func readStat(pid string) (stat, bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return stat{}, false
	}
	return parseStat(b)
}

// parseStat reads the fields behind the program's name, which may itself hold blanks and parentheses. The numbers of
// the fields are those of proc(5), less the two before: state 3, pgrp 5, starttime 22, rss 24.
func parseStat(b []byte) (stat, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, false
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 22 {
		return stat{}, false
	}
	pgid, err1 := strconv.Atoi(f[2])
	start, err2 := strconv.ParseInt(f[19], 10, 64)
	pages, err3 := strconv.ParseInt(f[21], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return stat{}, false
	}
	return stat{zombie: f[0] == "Z" || f[0] == "X", pgid: pgid, start: start, rss: pages * int64(os.Getpagesize())}, true
}

// startOf is when a process started; false when there is none.
func startOf(pid int) (int64, bool) {
	s, ok := readStat(strconv.Itoa(pid))
	return s.start, ok
}

// eachProcess calls f for every process until it returns false.
func eachProcess(f func(pid string, s stat) bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if s, ok := readStat(name); ok && !f(name, s) {
			return
		}
	}
}

// anyAlive reports whether a process of the group is more than a zombie.
func anyAlive(pgid int) (alive bool) {
	eachProcess(func(_ string, s stat) bool {
		alive = s.pgid == pgid && !s.zombie
		return !alive
	})
	return alive
}

// marked reports whether a process of the group has the variable in its environment.
func marked(pgid int, variable string) (found bool) {
	eachProcess(func(pid string, s stat) bool {
		if s.pgid == pgid {
			env, _ := os.ReadFile("/proc/" + pid + "/environ")
			found = hasVariable(env, variable)
		}
		return !found
	})
	return found
}

// groupsOf are the groups of all processes that a host started, or that came of those: by their environment.
func groupsOf(host string) (groups []group) {
	seen := make(map[int]bool)
	eachProcess(func(pid string, s stat) bool {
		if s.pgid > 1 && !s.zombie && !seen[s.pgid] {
			env, _ := os.ReadFile("/proc/" + pid + "/environ")
			if seen[s.pgid] = hasVariable(env, envHost+"="+host); seen[s.pgid] {
				groups = append(groups, group{pgid: s.pgid, host: host})
			}
		}
		return true
	})
	return groups
}

func hasVariable(env []byte, variable string) bool {
	return bytes.Contains(append([]byte{0}, env...), []byte("\x00"+variable+"\x00"))
}

// groupMemory is the resident memory of every process group, in bytes.
func groupMemory() (map[int]int64, error) {
	used := make(map[int]int64)
	eachProcess(func(_ string, s stat) bool {
		used[s.pgid] += s.rss
		return true
	})
	return used, nil
}
