package emulator

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
)

// RequiredEnv, when set to anything, makes a test fail that would be skipped for want of an emulator: for machines that
// are meant to have them.
const RequiredEnv = "ERRAND_EMULATORS_REQUIRED"

// TB is what this package needs of a testing.TB.
type TB interface {
	Helper()
	Cleanup(f func())
	Context() context.Context
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Firestore returns the address of this test binary's Firestore emulator, started by the first test that asks. All
// tests share it: each takes a project id of its own. Without an emulator on the machine the test is skipped, or fails
// when [RequiredEnv] is set.
func Firestore(t TB) (addr string) {
	t.Helper()
	return shared(t, KindFirestore)
}

// PubSub is [Firestore] for the Pub/Sub emulator.
func PubSub(t TB) (addr string) {
	t.Helper()
	return shared(t, KindPubSub)
}

// Need is [Firestore] and [PubSub] for a test whose program starts emulators of its own: it starts none.
func Need(t TB) {
	t.Helper()
	for _, kind := range []Kind{KindFirestore, KindPubSub} {
		_, _, err := programs[kind].find()
		switch {
		case err != nil && os.Getenv(RequiredEnv) == "":
			t.Skipf("SKIPPED, so nothing is known of this part: %s: %v", kind, err)
		case err != nil:
			t.Fatalf("%s: %v", kind, err)
		}
	}
}

// Main runs the tests of a package, ends its emulators, and returns the exit code, for TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(emulator.Main(m)) }
//
// On Linux the kernel ends them as well, so there a package may do without.
func Main(m interface{ Run() int }) int {
	code := m.Run()
	for _, o := range ofBinary {
		o.once.Do(func() { o.err = errors.New("the tests of this binary have ended") })
		if o.e != nil {
			o.e.Stop()
		}
	}
	return code
}

// ofBinary are the emulators of this test binary.
var ofBinary = map[Kind]*struct {
	once, shown sync.Once
	e           *Emulator
	err         error
}{KindFirestore: {}, KindPubSub: {}}

func shared(t TB, kind Kind) string {
	t.Helper()
	o := ofBinary[kind]
	o.once.Do(func() {
		// Not the first test's context: the others use the emulator after its end.
		o.e, o.err = Start(context.WithoutCancel(t.Context()), kind)
	})
	switch {
	case errors.Is(o.err, ErrMissing) && os.Getenv(RequiredEnv) == "":
		t.Skipf("SKIPPED, so nothing is known of this part: %v", o.err)
	case o.err != nil:
		t.Fatalf("%v", o.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			// With the first failure alone: those that follow it would show the same.
			o.shown.Do(func() { t.Logf("last output of the %s emulator on %s:\n%s", kind, o.e.Addr, lastWords(o.e.Output())) })
		}
	})
	return o.e.Addr
}

// lastWords is the end of an emulator's output, without the stacks that it prints of each refused request.
func lastWords(output string) string {
	const lines = 30
	var kept []string
	for line := range strings.Lines(output) {
		if !strings.HasPrefix(line, "\tat ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-lines):], "")
}
