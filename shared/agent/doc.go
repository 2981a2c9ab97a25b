// Package agent is the SDK: one handler, run as service, instance, pool, job or local process, as the environment says.
//
//	func main() { agent.Main(extract) }
//
//	func extract(ctx context.Context, r *agent.Run, in Invoice) (Report, error) {
//		lines, err := agent.Step(ctx, r, "parse", func(ctx context.Context) ([]Line, error) { … })
//		…
//	}
//
// An attempt can end at any moment: its machine may go away, its deadline may come, it may be canceled. Another attempt
// then runs the handler from the top. What makes that safe:
//
//   - [Step] records a result before the handler goes on, and gives back the record on a replay.
//   - [Once] performs an effect on the outside world at most once, and never again blindly when nobody knows.
//   - [Wait], [Sleep], [Call] and [Parallel] end the attempt and free its slot; the handler is run again when what it
//     waited for is there.
//   - The context ends when the run is canceled, the attempt is superseded, or its deadline comes.
//
// # Replays
//
// A handler must reach the same steps on each attempt. Steps are matched by name, each name once per attempt, so steps
// may run concurrently and end in any order. A handler that succeeds without having asked for every step that earlier
// attempts recorded took another way than they did: its run fails with [CodeNonDeterministic] and is not retried. The
// rule looks at the end and not at the order, because with concurrent steps any order is right. Waits, sleeps
// and calls are numbered in the order they are reached: reach them from one goroutine. They come one after another, so
// one that is asked for out of its turn fails the run at once.
//
// The package reaches the server through shared/api and nothing else of Errand.
package agent
