package process

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// sampleEvery is how often the memory of limited groups is looked at.
const sampleEvery = 500 * time.Millisecond

// sampler ends groups that use too much memory. One look serves all of them, and it rests while there are none.
type sampler struct {
	log *slog.Logger

	mu      sync.Mutex
	limited map[*Process]struct{}
	awake   bool
}

func (s *sampler) watch(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limited == nil {
		s.limited = make(map[*Process]struct{})
	}
	s.limited[p] = struct{}{}
	if !s.awake {
		s.awake = true
		time.AfterFunc(sampleEvery, s.look)
	}
}

func (s *sampler) forget(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.limited, p)
}

func (s *sampler) look() {
	used, err := groupMemory()
	if err != nil {
		s.log.Warn("memory limits are not enforced for now", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.limited {
		if n := used[p.pgid]; n > p.spec.Memory {
			delete(s.limited, p)
			p.end(fmt.Errorf("%w: %s in use, %s allowed", ErrMemory, size(n), size(p.spec.Memory)), 0)
		}
	}
	s.awake = len(s.limited) > 0
	if s.awake {
		time.AfterFunc(sampleEvery, s.look)
	}
}
