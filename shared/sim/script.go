package sim

import (
	"fmt"
	"strings"
)

// rng is splitmix64: a few lines, so that a seed means the same on every machine and release.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// n is a number below limit, which is above zero.
func (r *rng) n(limit int) int { return int(r.next() % uint64(limit)) }

// one in so many times.
func (r *rng) oneIn(n int) bool { return r.n(n) == 0 }

// pick is one of the given; the zero value if there are none.
func pick[T any](r *rng, of []T) T {
	if len(of) == 0 {
		var none T
		return none
	}
	return of[r.n(len(of))]
}

// Op is a kind of operation. The zero Op does nothing.
type Op uint8

// Choice is one step of a script. Roll fills in the details.
type Choice struct {
	Op   Op
	Roll uint64
}

func (c Choice) String() string { return fmt.Sprintf("{%s, %#x}", c.Op, c.Roll) }

// Script is what one world goes through, with what it is made of.
type Script struct {
	Seed    uint64 // of the world's make-up and of the processes' own randomness
	Calls   bool   // its agents call others and ask people
	Choices []Choice
}

// String is the script as Go source, to become a named test.
func (s Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sim.Script{Seed: %d, Calls: %t, Choices: []sim.Choice{\n", s.Seed, s.Calls)
	for _, c := range s.Choices {
		fmt.Fprintf(&b, "\t{Op: sim.%s, Roll: %#x},\n", c.Op, c.Roll)
	}
	b.WriteString("}}")
	return b.String()
}

// Generate makes the script of a seed: so many choices, weighted by the temper that the seed gives the world.
func Generate(seed uint64, steps int) Script {
	r := rng(seed ^ 0x5eed)
	s := Script{Seed: seed, Calls: callsIn(seed), Choices: make([]Choice, steps)}
	temper := temperOf(s)
	total := 0
	weights := make([]int, len(ops))
	for op := range ops {
		weights[op] = temper.weight(Op(op))
		total += weights[op]
	}
	for i := range s.Choices {
		at := r.n(total)
		op := 0
		for ; at >= weights[op]; op++ {
			at -= weights[op]
		}
		s.Choices[i] = Choice{Op(op), r.next()}
	}
	return s
}

// Shrink leaves out choices, in ever smaller pieces, while the script still fails in the same way.
func Shrink(s Script, fails func(Script) bool) Script {
	for size := len(s.Choices) / 2; size > 0; size /= 2 {
		for at := 0; at < len(s.Choices); {
			end := min(at+size, len(s.Choices))
			shorter := Script{s.Seed, s.Calls, append(append([]Choice(nil), s.Choices[:at]...), s.Choices[end:]...)}
			if fails(shorter) {
				s = shorter
				continue
			}
			at = end
		}
	}
	return s
}
