package cloudrun

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// quota spaces the starts of executions. How many the platform takes is not known beforehand: it differs by project and
// is not what is documented. So the figure is halved whenever the platform says that it was too many, and grows by one a
// minute while it does not. Safe for concurrent use.
type quota struct {
	mu      sync.Mutex
	bucket  *rate.Limiter
	minute  float64 // starts in a minute
	most    float64
	changed time.Time
}

const (
	least = 1.0 // starts in a minute, at least
	// burstOf is the part of a minute's starts that may come at once.
	burstOf = 6
	// growEvery is how often the figure grows by one.
	growEvery = time.Minute
	// shrinkOnce: answers to calls that were under way together tell the same thing.
	shrinkOnce = 5 * time.Second
)

func newQuota(first, most int, now time.Time) *quota {
	q := &quota{minute: float64(first), most: float64(most), changed: now}
	q.bucket = rate.NewLimiter(q.limit(), q.burst())
	return q
}

func (q *quota) limit() rate.Limit { return rate.Limit(q.minute / 60) }

func (q *quota) burst() int { return max(int(q.minute)/burstOf, 1) }

// reserve takes a start and says how long to wait for it. When that would be longer than the given time nothing is
// taken, and it is false.
func (q *quota) reserve(now time.Time, longest time.Duration) (time.Duration, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.bucket.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > longest {
		r.CancelAt(now)
		return wait, false
	}
	return wait, true
}

// allowed is how many starts need not wait now.
func (q *quota) allowed(now time.Time) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(int(q.bucket.TokensAt(now)), 0)
}

// exhausted notes that the platform had enough, and says when the next start may come.
func (q *quota) exhausted(now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.changed) >= shrinkOnce || q.changed.IsZero() {
		q.set(max(q.minute/2, least), now)
		// What has gathered is not there on the platform's side.
		q.bucket.ReserveN(now, max(int(q.bucket.TokensAt(now)), 0))
	}
	return time.Duration(float64(time.Minute) / q.minute)
}

// taken notes that the platform took a start.
func (q *quota) taken(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.minute < q.most && now.Sub(q.changed) >= growEvery {
		q.set(min(q.minute+1, q.most), now)
	}
}

func (q *quota) set(minute float64, now time.Time) {
	q.minute, q.changed = minute, now
	q.bucket.SetLimitAt(now, q.limit())
	q.bucket.SetBurstAt(now, q.burst())
}
