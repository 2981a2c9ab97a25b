package forecast

import (
	"strconv"

	"github.com/errand-run/errand/shared/run"
)

// task is a run that has not ended. Tasks are used again: gen tells one life from the next.
type task struct {
	id       string
	class    *class
	arrival  Arrival
	queuedAt run.Instant // since when it waits
	expires  run.Instant // end of its time in the queue; 0 for none
	deadline run.Instant
	started  run.Instant // first start; 0 before
	since    run.Instant // start of the attempt
	cost     int64       // charged in advance
	node     *node
	gen      uint32
	attempt  int16
	spent    int16
	returned int16
	priority int8
	state    state
}

type state uint8

const (
	queued state = iota + 1
	stored       // waits outside of the queue's memory
	parked       // unschedulable
	running
	backoff
)

// tasks hands out tasks.
type tasks struct {
	slabs [][]task
	free  []*task
	alive int
}

// slab is how many tasks are allocated together.
const slab = 512

func (s *tasks) take() *task {
	if len(s.free) == 0 {
		block := make([]task, slab)
		for i := range block {
			block[i].id = "r" + strconv.Itoa(len(s.slabs)*slab+i)
			s.free = append(s.free, &block[slab-1-i])
		}
		s.slabs = append(s.slabs, block)
	}
	t := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.alive++
	return t
}

// named is the task with the id.
func (s *tasks) named(id string) *task {
	n := 0
	for _, digit := range []byte(id[1:]) {
		n = 10*n + int(digit-'0')
	}
	return &s.slabs[n/slab][n%slab]
}

func (s *tasks) put(t *task) {
	*t = task{id: t.id, gen: t.gen + 1}
	s.free = append(s.free, t)
	s.alive--
}

// event is something that happens at an instant, unless the task has moved on since.
type event struct {
	at   run.Instant
	seq  uint64 // events of one instant happen in the order in which they were arranged
	task *task  // nil: workers change
	gen  uint32
	kind eventKind
	n    int32 // of workers: which
}

type eventKind uint8

const (
	attemptEnds eventKind = iota
	waitEnds              // of a queued or unschedulable run: its time in the queue, or its deadline
	backoffEnds
	workersJoin
	workersLeave
)

// events is a heap with four children per node: half as deep as one with two.
type events struct {
	list []event
	seq  uint64
}

func (x *event) before(y *event) bool { return x.at < y.at || x.at == y.at && x.seq < y.seq }

func (h *events) push(x event) {
	h.seq++
	x.seq = h.seq
	h.list = append(h.list, x)
	i := len(h.list) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !x.before(&h.list[up]) {
			break
		}
		h.list[i] = h.list[up]
		i = up
	}
	h.list[i] = x
}

func (h *events) pop() event {
	top, last := h.list[0], len(h.list)-1
	x := h.list[last]
	h.list[last].task = nil
	h.list = h.list[:last]
	if last == 0 {
		return top
	}
	i := 0
	for {
		first := 4*i + 1
		if first >= last {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, last); c++ {
			if h.list[c].before(&h.list[least]) {
				least = c
			}
		}
		if !h.list[least].before(&x) {
			break
		}
		h.list[i] = h.list[least]
		i = least
	}
	h.list[i] = x
	return top
}
