package patterns

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/errand-run/errand/shared/agent"
)

// Hierarchical: the lead splits a study by region, each region by shop, and results are drawn together on the way back.

// Bounds of a study.
const (
	maxRegions = 50
	maxShops   = 500 // of a region
	maxDays    = 1_000
)

type study struct {
	Regions []region `json:"regions"`
}

type region struct {
	Name  string `json:"name"`
	Shops []shop `json:"shops"`
}

type shop struct {
	Name  string    `json:"name"`
	Sales []float64 `json:"sales"` // by day
}

type shopResult struct {
	Name    string  `json:"name"`
	Total   float64 `json:"total"`
	Mean    float64 `json:"mean"`
	Unusual []int   `json:"unusual"` // days, from 1, more than two standard deviations off
}

type regionResult struct {
	Name    string   `json:"name"`
	Total   float64  `json:"total"`
	Shops   int      `json:"shops"`
	Best    string   `json:"best"`
	Unusual []string `json:"unusual"`
	Missing []string `json:"missing,omitempty"` // shops whose figures could not be used
}

type studyResult struct {
	Total   float64        `json:"total"`
	Regions []regionResult `json:"regions"` // most sales first
}

// leadStudy knows of regions, and leaves what is in them to those below.
func leadStudy(ctx context.Context, r *agent.Run, in study) (studyResult, error) {
	if len(in.Regions) == 0 || len(in.Regions) > maxRegions {
		return studyResult{}, invalid("regions: a study has 1 to %d, this has %d", maxRegions, len(in.Regions))
	}
	var calls []agent.Request
	for _, reg := range in.Regions {
		calls = append(calls, agent.To("study-region", reg))
	}
	results, err := agent.Parallel[regionResult](ctx, r, calls)
	if err != nil {
		return studyResult{}, err
	}
	var out studyResult
	for _, result := range results {
		out.Regions = append(out.Regions, result.Value)
		out.Total += result.Value.Total
	}
	slices.SortStableFunc(out.Regions, func(a, b regionResult) int { return cmp.Compare(b.Total, a.Total) })
	return out, nil
}

// studyRegion bears half of its shops to be unusable.
func studyRegion(ctx context.Context, r *agent.Run, in region) (regionResult, error) {
	out := regionResult{Name: in.Name, Unusual: []string{}}
	if len(in.Shops) == 0 || len(in.Shops) > maxShops {
		return out, invalid("shops: region %q has %d, want 1 to %d", cut(in.Name, 40), len(in.Shops), maxShops)
	}
	var calls []agent.Request
	for _, s := range in.Shops {
		calls = append(calls, agent.To("study-shop", s))
	}
	results, err := agent.Parallel[shopResult](ctx, r, calls, agent.Max(4), agent.Tolerate(float64(len(calls)/2)))
	if err != nil {
		return out, err
	}
	best := math.Inf(-1)
	for i, result := range results {
		if result.Err != nil {
			out.Missing = append(out.Missing, in.Shops[i].Name)
			continue
		}
		s := result.Value
		out.Shops++
		out.Total += s.Total
		if s.Total > best {
			best, out.Best = s.Total, s.Name
		}
		for _, day := range s.Unusual {
			out.Unusual = append(out.Unusual, fmt.Sprintf("%s, day %d", s.Name, day))
		}
	}
	return out, nil
}

func studyShop(_ context.Context, _ *agent.Run, in shop) (shopResult, error) {
	n := len(in.Sales)
	if n == 0 || n > maxDays {
		return shopResult{}, invalid("sales: shop %q has %d days, want 1 to %d", cut(in.Name, 40), n, maxDays)
	}
	out := shopResult{Name: in.Name, Unusual: []int{}}
	for day, s := range in.Sales {
		if s < 0 || s > 1e12 {
			return out, invalid("sales[%d] of shop %q: want 0 to 1e12", day, cut(in.Name, 40))
		}
		out.Total += s
	}
	out.Mean = thousandths(out.Total / float64(n))
	var squares float64
	for _, s := range in.Sales {
		squares += (s - out.Mean) * (s - out.Mean)
	}
	deviation := math.Sqrt(squares / float64(n))
	for day, s := range in.Sales {
		if math.Abs(s-out.Mean) > 2*deviation && deviation > 0 {
			out.Unusual = append(out.Unusual, day+1)
		}
	}
	return out, nil
}
