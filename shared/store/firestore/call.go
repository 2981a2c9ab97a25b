package firestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// request sends one request: one of the bounded number under way, and within its time.
func (s *Store) request(ctx context.Context, f func(ctx context.Context) error) error {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.slots }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx)
}

// repeat sends a request that may be sent again: a read, or a write that ends the same however often it is applied.
func (s *Store) repeat(ctx context.Context, what string, f func(ctx context.Context) error) error {
	for try := 1; ; try++ {
		err := s.request(ctx, f)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case judge(err) != unclear && judge(err) != throttled:
			return fmt.Errorf("%s: %w", what, err)
		case try == failTries:
			return fmt.Errorf("%s, tried %d times: %w", what, try, err)
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// pause waits before a repetition: twice as long each time, of which a random part, so that those who met part.
func pause(ctx context.Context, try int) error {
	most := min(longestPause, firstPause<<min(try-1, 10))
	t := time.NewTimer(most/4 + rand.N(most*3/4))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verdict is what an error of a write says.
type verdict int

const (
	applied   verdict = iota
	unmet             // a precondition did not hold, perhaps because the same request was applied before
	unclear           // it may have been applied, now or later
	throttled         // it was not applied, and may be repeated
	refused           // it was not applied, and a repetition would not be either
)

// judge reads an error of the transport or the platform.
func judge(err error) verdict {
	if err == nil {
		return applied
	}
	return judgeCode(status.Code(err))
}

func judgeCode(c codes.Code) verdict {
	switch c {
	case codes.OK:
		return applied
	case codes.AlreadyExists, codes.FailedPrecondition, codes.NotFound:
		return unmet
	case codes.ResourceExhausted:
		return throttled
	case codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return refused
	}
	return unclear
}

// each calls f for 0 to n-1, side by side but for the bound on requests, and returns when all are done.
func (s *Store) each(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, cap(s.slots)) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
