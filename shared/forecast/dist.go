package forecast

import (
	"math"
	"time"
)

// Dist is how a length of time or a count is distributed, as its quantiles. The zero Dist is zero. The unit of a length
// of time is the nanosecond.
type Dist struct {
	kind string
	a, b float64
}

// MaxValue bounds what a Dist gives.
const MaxValue = 1e18

// Constant is always v.
func Constant(v float64) Dist { return Dist{"constant", v, 0} }

// Uniform is equally often anything from low to high.
func Uniform(low, high float64) Dist { return Dist{"uniform", low, high} }

// Exponential has many short ones and few long ones around the mean; what has lasted long lasts no shorter for it.
func Exponential(mean float64) Dist { return Dist{"exponential", mean, 0} }

// z95 is the 95th percentile of the standard normal distribution.
const z95 = 1.6448536269514722

// Lognormal has half of its values below p50 and all but a twentieth below p95, which is not below p50.
func Lognormal(p50, p95 float64) Dist {
	return Dist{"lognormal", math.Log(p50), math.Log(p95/p50) / z95}
}

// At is the quantile of u, which is in [0, 1), as a length of time of at least 1 ms.
func (d Dist) At(u float64) time.Duration {
	return max(time.Duration(d.value(u)).Round(time.Millisecond), time.Millisecond)
}

// Mean is the mean, infinite for none.
func (d Dist) Mean() float64 {
	switch d.kind {
	case "uniform":
		return (d.a + d.b) / 2
	case "lognormal":
		return math.Exp(d.a + d.b*d.b/2)
	}
	return d.a
}

func (d Dist) value(u float64) float64 {
	v := d.a
	switch d.kind {
	case "uniform":
		v = d.a + u*(d.b-d.a)
	case "exponential":
		v = -d.a * math.Log1p(-u)
	case "lognormal":
		v = math.Exp(d.a + d.b*math.Sqrt2*math.Erfinv(2*u-1))
	}
	if !(v > 0) { // also what is not a number
		return 0
	}
	return min(v, MaxValue)
}
