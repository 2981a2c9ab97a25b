package placement

import (
	"math"
	"math/bits"
	"time"
)

// Scorer ranks nodes: 0 is worst, 100 is best. What is outside counts as the nearer end.
type Scorer interface {
	Name() string
	Score(w *World, r *Request, n *Node) int
}

// Weighted is a scorer and how much it counts.
type Weighted struct {
	Scorer
	Weight int // 0 or more
}

// NewScorer makes a scorer of a function.
func NewScorer(name string, f func(*World, *Request, *Node) int) Scorer { return scorer{name, f} }

type scorer struct {
	name string
	fn   func(*World, *Request, *Node) int
}

func (s scorer) Name() string                            { return s.name }
func (s scorer) Score(w *World, r *Request, n *Node) int { return s.fn(w, r, n) }

// Cost prefers cheap targets: 100 for free, and 4 less for each doubling of the expected price of a run from a
// millionth of a dollar on.
func Cost() Scorer { return scorer{"cost", cost} }

// Affinity is the sum of the weights of the agent's preferences that the target meets.
func Affinity() Scorer { return scorer{"affinity", affinity} }

// Spread prefers the node with the larger share of its slots free.
func Spread() Scorer { return scorer{"spread", spread} }

// Warmth prefers a node that runs the agent or has run it.
func Warmth() Scorer { return scorer{"warmth", warmth} }

// assumedSeconds is how long a run is taken to be when its agent does not say.
const assumedSeconds = 60

func cost(_ *World, r *Request, n *Node) int {
	seconds := float64(assumedSeconds)
	if expected := r.Agent.Lifetime.Expected.Std(); expected > 0 {
		seconds = float64(expected) / float64(time.Second)
	}
	micros := (n.Target.Cost.PerRunUSD + n.Target.Cost.PerRunSecondUSD*seconds) * 1e6
	if !(micros > 0) {
		return 100
	}
	return 100 - logarithm(uint64(min(micros, math.MaxInt64/2))+1, 4)
}

// logarithm is times·log2(x), with straight lines between powers of two: integers are equal on every machine.
func logarithm(x uint64, times int) int {
	whole := bits.Len64(x) - 1
	rest := x - 1<<whole
	if whole > 32 {
		rest >>= whole - 32
		return times*whole + int(uint64(times)*rest>>32)
	}
	return times*whole + int(uint64(times)*rest>>whole)
}

func affinity(_ *World, r *Request, n *Node) int {
	sum := 0
	for _, p := range r.Agent.Prefers {
		if hasLabels(n.Target, p.Labels) {
			sum += p.Weight
		}
	}
	return sum
}

func spread(_ *World, _ *Request, n *Node) int {
	size := n.Target.Capacity.Runs
	if n.Worker != "" {
		size = n.Slots
	}
	if size <= 0 {
		return 100 / (1 + max(n.used.Slots, 0))
	}
	return 100 * max(size-n.used.Slots, 0) / size
}

func warmth(_ *World, r *Request, n *Node) int {
	if n.Warm(r.Agent.Name()) {
		return 100
	}
	return 0
}
