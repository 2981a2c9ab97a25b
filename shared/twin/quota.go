package twin

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// quotas has one bucket of RunJob calls per project and region.
type quotas struct {
	quota   Quota
	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

// take takes one call out of a location's bucket.
func (q *quotas) take(location string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.buckets == nil || len(q.buckets) > maxResources {
		q.buckets = make(map[string]*rate.Limiter)
	}
	b, ok := q.buckets[location]
	if !ok {
		b = rate.NewLimiter(rate.Every(q.quota.Per/time.Duration(q.quota.Limit)), q.quota.Limit)
		q.buckets[location] = b
	}
	if !b.Allow() {
		return status.Errorf(codes.ResourceExhausted,
			"Quota exceeded for quota metric 'Job run requests' and limit 'Job run requests per minute per region' of %s: %d per %s",
			location, q.quota.Limit, q.quota.Per)
	}
	return nil
}
