package bench

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Machine is what was measured on. Figures of different hours on one machine differ: the probes say by how much.
type Machine struct {
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	CPU      string `json:"cpu,omitempty"`
	Cores    int    `json:"cores"`
	MemoryMB int    `json:"memoryMB,omitempty"`
	// Syncs is how many times a second 4 KiB can be appended and flushed to the disk, one after the other.
	Syncs float64 `json:"syncsPerSecond"`
	// Hash is the speed of SHA-256 on one core.
	Hash float64 `json:"sha256MBPerSecond"`
}

const (
	diskProbe = time.Second
	coreProbe = 300 * time.Millisecond
)

func probe(ctx context.Context, dir string) (Machine, error) {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU()}
	m.CPU = lineOf("/proc/cpuinfo", "model name")
	if _, err := fmt.Sscanf(lineOf("/proc/meminfo", "MemTotal"), "%d", &m.MemoryMB); err == nil {
		m.MemoryMB /= 1024
	}
	var err error
	if m.Syncs, err = probeDisk(ctx, filepath.Join(dir, "probe")); err != nil {
		return m, fmt.Errorf("probe the disk: %w", err)
	}
	m.Hash = probeCore()
	return m, nil
}

// lineOf is the value of the first line "key : value" of a file; "" where there is none.
func lineOf(file, key string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		if name, value, ok := strings.Cut(scan.Text(), ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func probeDisk(ctx context.Context, path string) (float64, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer os.Remove(path)
	defer f.Close()
	page := make([]byte, 4096)
	n := 0
	began := time.Now()
	for time.Since(began) < diskProbe {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := flush(f); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

func probeCore() float64 {
	block := make([]byte, 1<<20)
	n := 0
	began := time.Now()
	for time.Since(began) < coreProbe {
		sum := sha256.Sum256(block)
		block[0] = sum[0]
		n++
	}
	return float64(n) / time.Since(began).Seconds()
}
