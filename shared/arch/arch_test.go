package arch

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestTheTreeKeepsTheRulesOfTheHouse(t *testing.T) {
	const top = "../.."
	if _, err := os.Stat(top + "/go.mod"); err != nil {
		t.Fatalf("the top of the tree: %v", err)
	}
	problems, err := Check(os.DirFS(top), House())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// small is a table for trees of a few files.
func small() Rules {
	house := House()
	return Rules{
		Packages: map[string]Package{
			"run":          {Layer: kernel},
			"queue":        {Layer: policy},
			"placement":    {Layer: policy},
			"store":        {Layer: ports},
			"store/port":   {Layer: drivers},
			"store/sqlite": {Layer: drivers, Beside: []string{"store/port"}},
			"storetest":    {Layer: drivers, Suite: true},
			"control":      {Layer: stages},
			"api":          {Layer: doors},
			"agent":        {Layer: doors, Beside: []string{"api", "door"}},
			"door":         {Layer: doors, Beside: []string{"api"}},
		},
		Reach:     map[string][]string{"agent": {"api", "door"}},
		Libraries: map[string][]string{"example.com/sql": {"store/sqlite"}, "example.com/assert": nil},
		Pure:      house.Pure,
		Impure:    house.Impure,
		Words:     house.Words,
	}
}

// sound is a tree that keeps every rule of small.
func sound() fstest.MapFS {
	tree := fstest.MapFS{}
	for name, text := range map[string]string{
		"go.mod":                        "module " + Module + "\n",
		"main.go":                       "package main\nimport _ \"" + Module + "/shared/door\"\nfunc main() {}\n",
		"services/worker/main.go":       "package main\nimport _ \"" + Module + "/shared/agent\"\nfunc main() {}\n",
		"shared/run/run.go":             "package run\nimport \"time\"\nconst Day = 24 * time.Hour\n",
		"shared/run/run_test.go":        "package run\nimport (\n\t\"context\"\n\t\"time\"\n)\nvar _, _ = context.Background, time.Now\nfunc TestDay() {}\n",
		"shared/queue/queue.go":         "package queue\nimport _ \"" + Module + "/shared/run\"\n",
		"shared/placement/p.go":         "package placement\nimport _ \"" + Module + "/shared/run\"\n",
		"shared/placement/p_test.go":    "package placement\nimport _ \"" + Module + "/shared/queue\"\nimport _ \"example.com/assert\"\n",
		"shared/store/store.go":         "package store\nimport _ \"" + Module + "/shared/run\"\n",
		"shared/store/port/port.go":     "package port\nimport _ \"" + Module + "/shared/store\"\n",
		"shared/store/sqlite/s.go":      "package sqlite\nimport _ \"" + Module + "/shared/store/port\"\nimport _ \"example.com/sql/driver\"\n",
		"shared/store/sqlite/s_test.go": "package sqlite_test\nimport _ \"" + Module + "/shared/storetest\"\n",
		"shared/storetest/suite.go":     "package storetest\nimport _ \"" + Module + "/shared/store\"\nimport _ \"testing\"\nimport _ \"example.com/assert\"\n",
		"shared/control/control.go":     "package control\nimport _ \"" + Module + "/shared/store\"\n",
		"shared/api/api.go":             "package api\n",
		"shared/door/door.go":           "package door\nimport _ \"" + Module + "/shared/api\"\n",
		"shared/agent/agent.go":         "package agent\nimport _ \"" + Module + "/shared/door\"\n",
		"examples/examples_test.go":     "package examples\nimport _ \"" + Module + "/shared/door\"\n",
		"docs/guide.md":                 "See [run](../shared/run), [this](#part) and [that](https://example.com), as `TestDay` shows.\nBut `f[T](r)`.\n",
		"vendored/go.mod":               "module elsewhere\n",
		"vendored/util/util.go":         "package util\n",
	} {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}

func TestASoundTreeHasNoProblems(t *testing.T) {
	problems, err := Check(sound(), small())
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		t.Error(problems)
	}
}

// Each case spoils the sound tree in one way, which shows that the rule can fail.
func TestEachRuleCanFail(t *testing.T) {
	imports := func(pkg string, paths ...string) string {
		text := "package " + pkg + "\n"
		for _, p := range paths {
			text += "import _ \"" + strings.Replace(p, "~", Module, 1) + "\"\n"
		}
		return text
	}
	lines := func(n int, text string) string { return text + strings.Repeat("//\n", n-strings.Count(text, "\n")) }

	tests := map[string]struct {
		file, text string
		more       map[string]string // files by path
		remove     string
		want       []string // the beginning of each problem, or all of it
	}{
		"a package that the table lacks": {
			file: "shared/novel/novel.go", text: "package novel\n",
			want: []string{`shared/novel: unknown package: no layer is set for "novel": add a row to Packages in shared/arch/table.go`},
		},
		"a row whose package is gone": {
			remove: "shared/placement", want: []string{"shared/placement: unknown package: the table has a row"},
		},
		"Go code where none belongs": {
			file: "tools/gen/gen.go", text: "package gen\n", want: []string{"tools/gen: unknown package: Go code lives under shared/"},
		},
		"code among the examples": {
			file: "examples/run.go", text: "package examples\n", want: []string{"examples: unknown package: Go code lives under shared/"},
		},
		"an import upwards": {
			file: "shared/store/up.go", text: imports("store", "~/shared/control"),
			want: []string{"shared/store/up.go:2: layers: store (layer 2) imports control (layer 4): imports go down only"},
		},
		"an import upwards by a test": {
			file: "shared/queue/up_test.go", text: imports("queue", "~/shared/control"),
			want: []string{"shared/queue/up_test.go:2: layers: queue (layer 1) imports control (layer 4)"},
		},
		"an import to the side": {
			file: "shared/queue/side.go", text: imports("queue", "~/shared/placement"),
			want: []string{"shared/queue/side.go:2: layers: queue imports placement of its own layer 1"},
		},
		"a conformance suite outside tests": {
			file: "shared/control/suite.go", text: imports("control", "~/shared/storetest"),
			want: []string{"shared/control/suite.go:2: layers: storetest is for tests, which alone import it"},
		},
		"a conformance suite in a command": {
			file: "services/worker/suite.go", text: imports("main", "~/shared/storetest"),
			want: []string{"services/worker/suite.go:2: layers: storetest is for tests, which alone import it"},
		},
		"the SDK reaches the control plane directly": {
			file: "shared/agent/short.go", text: imports("agent", "~/shared/control"),
			want: []string{
				"shared/agent/short.go:2: reach: agent must not reach control, and does: shared/agent → shared/control",
				"shared/store/store.go:2: reach: agent must not reach run, and does: shared/agent → shared/control → shared/store → shared/run",
				"shared/control/control.go:2: reach: agent must not reach store",
			},
		},
		"the SDK reaches the control plane over a friend": {
			file: "shared/door/far.go", text: imports("door", "~/shared/control"),
			want: []string{
				"shared/door/far.go:2: reach: agent must not reach control, and does: shared/agent → shared/door → shared/control",
				"shared/control/control.go:2: reach: agent must not reach store",
				"shared/store/store.go:2: reach: agent must not reach run",
			},
		},
		"a library that nobody decided about": {
			file: "shared/control/lib.go", text: imports("control", "example.com/left-pad"),
			want: []string{"shared/control/lib.go:2: libraries: nothing says who may import example.com/left-pad"},
		},
		"a library of another package": {
			file: "shared/control/lib.go", text: imports("control", "example.com/sql/driver"),
			want: []string{"shared/control/lib.go:2: libraries: example.com/sql/driver is for store/sqlite; go through it"},
		},
		"a library of another package in a command": {
			file: "services/worker/lib.go", text: imports("main", "example.com/sql"),
			want: []string{"services/worker/lib.go:2: libraries: example.com/sql is for store/sqlite"},
		},
		"a library for tests outside them": {
			file: "shared/control/lib.go", text: imports("control", "example.com/assert"),
			want: []string{"shared/control/lib.go:2: libraries: example.com/assert is for tests"},
		},
		"a row for a library that is gone": {
			remove: "shared/store/sqlite", want: []string{
				"go.mod: libraries: nobody imports example.com/sql any more", "shared/store/sqlite: unknown package: the table has a row",
			},
		},
		"context in the core": {
			file: "shared/run/ctx.go", text: imports("run", "context"),
			want: []string{"shared/run/ctx.go:2: pure: layers 0 to 1 decide over values: context is not among Pure"},
		},
		"randomness in the core": {
			file: "shared/queue/dice.go", text: imports("queue", "math/rand/v2"),
			want: []string{"shared/queue/dice.go:2: pure: layers 0 to 1 decide over values: math/rand/v2"},
		},
		"the operating system in the core": {
			file: "shared/queue/sys.go", text: imports("queue", "os", "net"),
			want: []string{"shared/queue/sys.go:2: pure: ", "shared/queue/sys.go:3: pure: "},
		},
		"a clock in the core": {
			file: "shared/queue/clock.go", text: "package queue\nimport \"time\"\nvar Start = time.Now()\n",
			want: []string{"shared/queue/clock.go:3: pure: time.Now: layers 0 to 1 read no clock"},
		},
		"a clock under another name": {
			file: "shared/queue/clock.go", text: "package queue\nimport hours \"time\"\nfunc wait() { hours.Sleep(hours.Second) }\n",
			want: []string{"shared/queue/clock.go:3: pure: time.Sleep: "},
		},
		"a clock without a name": {
			file: "shared/queue/clock.go", text: "package queue\nimport . \"time\"\nvar start = Now()\n",
			want: []string{"shared/queue/clock.go:2: pure: import time under its name"},
		},
		"a clock passed as a value": {
			file: "shared/run/clock.go", text: "package run\nimport \"time\"\nvar clock = time.Now\n",
			want: []string{"shared/run/clock.go:3: pure: time.Now: "},
		},
		"printing in the core": {
			file: "shared/run/say.go", text: "package run\nimport \"fmt\"\nfunc say() { fmt.Println() }\n",
			want: []string{"shared/run/say.go:3: pure: fmt.Println: "},
		},
		"concurrency in the core": {
			file: "shared/run/go.go", text: "package run\nfunc f(c chan int) {\n\tgo f(c)\n\tselect {}\n}\n",
			want: []string{"shared/run/go.go:2: pure: ", "shared/run/go.go:3: pure: ", "shared/run/go.go:4: pure: "},
		},
		"a command that imports a command": {
			file: "services/worker/other.go", text: imports("main", "~/jobs/audit"),
			want: []string{"services/worker/other.go:2: mains: github.com/errand-run/errand/jobs/audit is a command"},
		},
		"parts of the functions, which are one command": {
			file: "functions/main.go", text: imports("main", "~/functions/tick"),
			more: map[string]string{"functions/tick/tick.go": "package tick\n"},
		},
		"a part of the functions in another command": {
			file: "services/worker/other.go", text: imports("main", "~/functions/tick"),
			more: map[string]string{"functions/tick/tick.go": "package tick\n"},
			want: []string{"services/worker/other.go:2: mains: github.com/errand-run/errand/functions/tick is a command"},
		},
		"a package that imports the top": {
			file: "shared/control/top.go", text: imports("control", "~"),
			want: []string{"shared/control/top.go:2: mains: github.com/errand-run/errand is a command"},
		},
		"a command of 81 lines": {
			file: "services/worker/main.go", text: lines(81, "package main\nfunc main() {}\n"),
			want: []string{"services/worker: mains: 81 lines, and a command wires things in at most 80"},
		},
		"a command of two files of 41 lines": {
			file: "services/worker/rest.go", text: lines(78, "package main\n"),
			want: []string{"services/worker: mains: 81 lines"},
		},
		"two commands of one name": {
			file: "jobs/worker/main.go", text: "package main\nfunc main() {}\n",
			want: []string{"services/worker: mains: jobs/worker has the same name"},
		},
		"a package named util": {
			file: "shared/run/util.go", text: "package util\n",
			want: []string{`shared/run/util.go: names: a package named "util" can hold anything`},
		},
		"a package with a bad name": {
			file: "shared/run/bad.go", text: "package runKernel\n",
			want: []string{"shared/run/bad.go: names: package runKernel: one lower-case word"},
		},
		"a file of 801 lines": {
			file: "shared/run/long.go", text: lines(801, "package run\n"),
			want: []string{"shared/run/long.go: sizes: 801 lines, and 800 are the most"},
		},
		"a test of 801 lines": {
			file: "shared/run/long_test.go", text: lines(801, "package run\n"),
			want: []string{"shared/run/long_test.go: sizes: 801 lines"},
		},
		"a folder of one machine": {
			file: "docs/notes.md", text: "Built\nin /work" + "/tree.\n",
			want: []string{`docs/notes.md:2: words: " /work` + `/" is a folder of one machine`},
		},
		"the address of a registry": {
			file: "Makefile", text: "# From https://registry" + ".example.org.\n",
			want: []string{`Makefile:1: words: "https://registry` + `." is the address of a registry`},
		},
		"a link that leads nowhere": {
			file: "docs/notes.md", text: "See\n[this](guide.md#here) and [that](../guide.md).\n",
			want: []string{"docs/notes.md:2: docs: ../guide.md is not there"},
		},
		"a promise whose test is gone": {
			file: "README.md", text: "Proved by `TestNight`.\n", want: []string{"README.md:1: docs: there is no test TestNight"},
		},
		"a path out of the repository": {
			file: "docs/adr/notes.md", text: "See ../../" + "../shared/notes.\n",
			want: []string{"docs/adr/notes.md:1: words: ../../" + "../shared/ is outside the repository"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tree := sound()
			if tt.remove != "" {
				for file := range tree {
					if strings.HasPrefix(file, tt.remove+"/") {
						delete(tree, file)
					}
				}
			}
			if tt.file != "" {
				tree[tt.file] = &fstest.MapFile{Data: []byte(tt.text)}
			}
			for file, text := range tt.more {
				tree[file] = &fstest.MapFile{Data: []byte(text)}
			}
			problems, err := Check(tree, small())
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			for _, p := range problems {
				got = append(got, p.String())
			}
			for _, w := range tt.want {
				// Compare whole lines, so that a difference shows them.
				at := slices.IndexFunc(got, func(g string) bool { return strings.HasPrefix(g, w) })
				if at < 0 {
					want = append(want, w)
					continue
				}
				want = append(want, got[at])
			}
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestATreeThatDoesNotParseIsAnError(t *testing.T) {
	tree := sound()
	tree["shared/run/broken.go"] = &fstest.MapFile{Data: []byte("package run\nfunc {\n")}
	if _, err := Check(tree, small()); err == nil || !strings.Contains(err.Error(), "shared/run/broken.go:2") {
		t.Errorf("error %v, want one that says where", err)
	}
}
