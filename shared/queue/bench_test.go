package queue

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/errand-run/errand/shared/run"
)

// backlog is 100,000 runs of 1,000 tenants in four classes each.
func backlog() []Entry {
	list := make([]Entry, 100_000)
	for i := range list {
		list[i] = Entry{
			ID: fmt.Sprintf("run-%021d", i), Tenant: fmt.Sprint("tenant-", i%1000), Class: Class(i % 4), Priority: i % 7,
			QueuedAt: run.Instant(1 + i*7919%100_000), Slots: 1, Cost: int64(1000 + i%13*100),
		}
	}
	return list
}

func filled(list []Entry) *Queue {
	q := New(Options{})
	for _, e := range list {
		q.Push(e)
	}
	return q
}

// BenchmarkDrain takes a backlog of 100,000 in one pass; an operation is one run.
func BenchmarkDrain(b *testing.B) {
	list := backlog()
	b.ReportAllocs()
	for left := b.N; left > 0; {
		b.StopTimer()
		q := filled(list)
		b.StartTimer()
		p := q.Begin()
		for e, ok := p.Next(); ok && left > 0; e, ok = p.Next() {
			p.Take(e)
			left--
		}
		p.End()
	}
}

// BenchmarkRefuse refuses every class of every tenant in each pass; an operation is one refusal.
func BenchmarkRefuse(b *testing.B) {
	list := backlog()
	for i := range list {
		list[i].Class = list[i].Class.With(list[i].Tenant)
	}
	q := filled(list)
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		p := q.Begin()
		for e, ok := p.Next(); ok && left > 0; e, ok = p.Next() {
			p.BlockClass(e.Class)
			left--
		}
		p.End()
	}
}

func BenchmarkPushRemove(b *testing.B) {
	list := backlog()
	q := filled(list)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		e := list[i%len(list)]
		q.Remove(e.ID)
		q.Push(e)
	}
}

func BenchmarkPosition(b *testing.B) {
	q := filled(backlog())
	for b.Loop() {
		q.Position("run-000000000000000099999")
	}
}

func TestAnEntryIsSmall(t *testing.T) {
	list := backlog()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	q := filled(list)
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(q.Len())
	if per > 150 {
		t.Errorf("an entry takes %d B besides its ID, at most 150 are wanted", per)
	}
	t.Logf("%d B per entry", per)
	runtime.KeepAlive(list)
}
