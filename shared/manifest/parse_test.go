package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
)

// parse reads one input under the name "m".
func parse(t *testing.T, input string) (*Set, error) {
	t.Helper()
	return Parse([]File{{Name: "m", Data: strings.NewReader(input)}}, Options{})
}

func fixture(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// agent is a good agent with more lines under its spec.
func agent(lines string) string {
	return "apiVersion: errand.dev/v1\nkind: Agent\nmetadata: {name: a}\nspec:\n  shape: pool\n" + lines
}

func tenant(spec string) string {
	return "apiVersion: errand.dev/v1\nkind: Tenant\nmetadata: {name: t}\nspec: " + spec + "\n"
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	tests := map[string]struct {
		input string
		want  string // the whole error
	}{
		"a misspelt field stands at its key and gets a suggestion": {
			fixture(t, "misspelt-field.yaml"),
			"m:10:5: spec.timeouts.atempt: unknown field; did you mean `attempt`",
		},
		"all errors of all documents come in one go, and no failure leads to a second": {
			fixture(t, "seven-errors.yaml"), `
m:4:18: metadata.name: "Big Checker" is not a name; want lower-case letters, digits and hyphens (a DNS label, 1 to 63 characters, starting and ending with a letter or digit)
m:6:10: spec.shape: "daemon" is not one of service, instance, pool, job
m:7:18: spec.run.command: a text ("./check") where a list is needed; write [./check]
m:9:14: spec.timeouts.attempt: "90 seconds" is not a duration; try "90s"
m:10:10: spec.timeouts.run: -1h is negative; want a length of time above zero, like 1h
m:11:22: spec.concurrency.max: a text ("many") where a whole number is needed
m:18:20: spec.capacity.runs: -4 is negative; want 1 to 1000000`,
		},
		"a name is taken once per kind, and a key once per mapping": {
			fixture(t, "duplicates.yaml"), `
m:15:9: metadata.name: Tenant ` + "`north`" + ` is already given at line 4; rename or remove one
m:26:3: spec.quota: key ` + "`quota`" + ` is given twice, first at line 24; remove one`,
		},
		"a tab as indentation is called a tab": {
			fixture(t, "tab.yaml"),
			"m:6:1: a tab indents the line; YAML is indented with spaces, so replace the tab",
		},
		"text that is no YAML hides no other document's errors": {
			"a: [1\n---\n" + tenant("{weight: -1}"),
			"m:2:1: not YAML: did not find expected ',' or ']', while parsing a flow sequence that began at line 1\nm:6:16: spec.weight: -1 is negative; want 1 to 10000",
		},
		"a value that begins with an indicator should be quoted": {
			tenant("\n  weight: *x y"),
			"m:5:11: not YAML: unknown anchor 'x' referenced; a value that begins with * must stand in quotes",
		},
		"an unknown field without a neighbour gets the list of fields": {
			tenant("{quota: {zzzzzzz: 1}}"),
			"m:4:16: spec.quota.zzzzzzz: unknown field; want one of queued, running",
		},
		"a field in the wrong case gets its spelling": {
			tenant("{prioritymax: 3}"),
			"m:4:8: spec.prioritymax: unknown field; did you mean `priorityMax`",
		},
		"a required field that is misspelt is not missing too": {
			"apiVersion: errand.dev/v1\nkind: Agent\nmetadata: {nmae: a}\nspec: {shpae: pool}\n",
			"m:3:12: metadata.nmae: unknown field; did you mean `name`\nm:4:8: spec.shpae: unknown field; did you mean `shape`",
		},
		"what is missing is asked for at its parent": {
			"apiVersion: errand.dev/v1\nkind: Agent\nmetadata:\n  labels: {}\nspec:\n  retry: {on: [{class: user}]}\n",
			"m:4:3: metadata.name: a name is required\nm:6:3: spec.shape: a shape is required: service, instance, pool, job\nm:6:16: spec.retry.on[0].action: an action is required: retry, fail, ignore",
		},
		"a mapping where a list is needed names both": {
			agent("  needs: {regions: {a: b}}\n"),
			"m:6:20: spec.needs.regions: a mapping where a list is needed; begin each item with -",
		},
		"a list where a mapping is needed names both": {
			agent("  retry: [1]\n"),
			"m:6:10: spec.retry: a list where a mapping is needed",
		},
		"a list where a text is needed names both": {
			agent("  identity: [x]\n"),
			"m:6:13: spec.identity: a list where a text is needed",
		},
		"a number where a text is needed wants quotes": {
			agent("  run: {command: [x], env: {LIMIT: 3}}\n"),
			"m:6:36: spec.run.env.LIMIT: a number (3) where a text is needed; quote it: \"3\"",
		},
		"a boolean where a text is needed wants quotes": {
			agent("  run: {command: [x, true]}\n"),
			"m:6:22: spec.run.command[1]: a boolean (true) where a text is needed; quote it: \"true\"",
		},
		"a quoted number wants no quotes": {
			tenant("{weight: \"5\"}"),
			"m:4:16: spec.weight: a text (\"5\") where a whole number is needed; remove the quotes: 5",
		},
		"a fraction is no whole number": {
			tenant("{weight: 1.5}"),
			"m:4:16: spec.weight: a number (1.5) where a whole number is needed",
		},
		"a leading zero could be octal": {
			tenant("{weight: 010}"),
			"m:4:16: spec.weight: 010 begins with 0; write 10, or 0o10 if it is octal",
		},
		"a number past 63 bits": {
			tenant("{weight: 99999999999999999999}"),
			"m:4:16: spec.weight: 99999999999999999999 is not a whole number of up to 63 bits",
		},
		"an infinite number": {
			tenant("{budget: {usd: .inf}}"),
			"m:4:22: spec.budget.usd: .inf is not a finite number",
		},
		"yes is a text": {
			agent("  timeouts: {countWaiting: yes}\n"),
			"m:6:28: spec.timeouts.countWaiting: a text (\"yes\") where true or false is needed",
		},
		"a duration without a unit": {
			agent("  retain: 30\n"),
			"m:6:11: spec.retain: \"30\" is not a duration; try \"30s\"",
		},
		"an amount that is none": {
			agent("  needs: {cpu: fast, memory: 10MB}\n"),
			"m:6:16: spec.needs.cpu: \"fast\" is not an amount of CPU; write cores or thousandths of one, like 2, 0.5 or 500m\nm:6:30: spec.needs.memory: \"10MB\" is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi",
		},
		"an amount that is a list": {
			agent("  needs: {cpu: [1]}\n"),
			"m:6:16: spec.needs.cpu: a list where one value is needed",
		},
		"a zero that a default would silently replace": {
			agent("  retry: {maxAttempts: 0}\n"),
			"m:6:24: spec.retry.maxAttempts: 0 is not a value of this field; leave it out for its default, 4",
		},
		"an empty text that a default would silently replace": {
			agent("  backpressure: \"\"\n"),
			"m:6:17: spec.backpressure: an empty text is not a value of this field; leave it out for its default, queue",
		},
		"an empty item": {
			agent("  needs: {regions: [a, ]}\n  permissions:\n    state:\n    -\n"),
			"m:9:6: spec.permissions.state[0]: nothing where a value is needed; remove the item",
		},
		"an empty value among texts": {
			agent("  run: {command: [x], env: {HOME: }}\n"),
			"m:6:35: spec.run.env.HOME: nothing where a text is needed; write \"\" for the empty text",
		},
		"a key that is a number": {
			agent("  needs: {labels: {1: a}}\n"),
			"m:6:20: spec.needs.labels: a number (1) where a key is needed; quote it: \"1\"",
		},
		"a key that is a list": {
			agent("  ? [a]\n  : 1\n"),
			"m:6:5: spec: a list where a key is needed; a key is a text",
		},
		"a tag of one's own": {
			tenant("{weight: !big 4}"),
			"m:4:16: spec.weight: the tag !big has no meaning here; remove it",
		},
		"a schema without its field": {
			agent("  input: {type: object}\n"),
			"m:6:11: spec.input.type: unknown field; a JSON Schema stands under the field `schema`",
		},
		"a schema that JSON cannot say": {
			agent("  input: {schema: {minimum: .nan, const: !x 1, maximum: 1e400}}\n"),
			"m:6:29: spec.input.schema.minimum: .nan is not a finite number\nm:6:42: spec.input.schema.const: the tag !x has no meaning here; remove it\nm:6:57: spec.input.schema.maximum: 1e400 is not a number within 64 bits of floating point; quote it if it is a text",
		},
		"a schema that is a list": {
			agent("  output: {schema: [1]}\n"),
			"m:6:20: spec.output.schema: a schema is an object, true or false",
		},
		"a merge of something else": {
			agent("  retry: {<<: 1}\n  budget: {<<: [{usd: 1}, x]}\n"),
			"m:6:15: spec.retry: a number (1) in a merge (<<); want a mapping or a list of them\nm:7:27: spec.budget: a text (\"x\") in the list of a merge (<<); want mappings alone",
		},
		"an error behind an alias stands where it is written": {
			agent("  timeouts: &t {attempt: 1x}\n") + "---\napiVersion: errand.dev/v1\nkind: Tenant\nmetadata: {name: &n A}\nspec: {borrow: {from: *n, limit: 1}, quota: {running: 1}}\n",
			`
m:6:26: spec.timeouts.attempt: "1x" is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d
m:10:18: metadata.name: "A" is not a name; want lower-case letters, digits and hyphens (a DNS label, 1 to 63 characters, starting and ending with a letter or digit)
m:10:18: spec.borrow.from: "A" is not a name; want lower-case letters, digits and hyphens (a DNS label, 1 to 63 characters, starting and ending with a letter or digit)`,
		},
		"an anchor of another document": {
			"a: &x 1\n---\nb: *x\n",
			"m:1:1: apiVersion: required; write apiVersion: errand.dev/v1\nm:3:4: not YAML: unknown anchor 'x' referenced; a value that begins with * must stand in quotes",
		},
		"a kind that is to come": {
			"apiVersion: errand.dev/v1\nkind: Schedule\nspec: {anything: 1}\n",
			"m:2:7: kind: Schedule of errand.dev/v1 is not supported yet; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1",
		},
		"expressions of a trigger that do not compile": {
			"apiVersion: errand.dev/v1\nkind: Trigger\nmetadata: {name: orders}\nspec:\n  pubsub: {topic: orders}\n  run:\n    agent: clerk\n    input: mesage.data\n    key: \"message.data[\"\n",
			"m:8:12: spec.run.input: not an expression over message: 1:1: undeclared reference to 'mesage' (did you mean 'message'?)\n" +
				"m:9:10: spec.run.key: not an expression over message: 1:14: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
		},
		"a trigger of two kinds": {
			"apiVersion: errand.dev/v1\nkind: Trigger\nmetadata: {name: orders}\nspec: {pubsub: {topic: orders}, run: {agent: a, workflow: intake}}\n",
			"m:4:59: spec.run.workflow: agent and workflow exclude each other; keep one",
		},
		"a foreign kind that is to come": {
			"apiVersion: batch/v1\nkind: CronJob\n---\napiVersion: run.googleapis.com/v1\nkind: WorkerPool\n",
			"m:2:7: kind: CronJob of batch/v1 is not supported yet; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1\nm:5:7: kind: WorkerPool of run.googleapis.com/v1 is not supported yet; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1",
		},
		"a kind that does not exist": {
			"apiVersion: errand.dev/v1\nkind: Agnet\n---\napiVersion: batch/v1\nkind: Pod\n",
			"m:2:7: kind: unknown kind \"Agnet\" of errand.dev/v1; did you mean `Agent`; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1\nm:5:7: kind: unknown kind \"Pod\" of batch/v1; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1",
		},
		"a version that does not exist": {
			"apiVersion: errand.dev/v2\nkind: Agent\n---\napiVersion: apps/v1\nkind: Deployment\n",
			"m:1:13: apiVersion: unknown apiVersion \"errand.dev/v2\"; did you mean `errand.dev/v1`; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1\nm:4:13: apiVersion: unknown apiVersion \"apps/v1\"; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1",
		},
		"no kind": {
			"apiVersion: errand.dev/v1\n",
			"m:1:1: kind: required; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1",
		},
		"kind and version of a wrong type": {
			"apiVersion: [1]\n---\napiVersion: errand.dev/v1\nkind: {}\n",
			"m:1:13: apiVersion: a list where a text is needed; write apiVersion: errand.dev/v1\nm:4:7: kind: a mapping where a text is needed; supported are Agent, Target, Tenant, Workflow, Trigger of errand.dev/v1",
		},
		"a document that is no object": {
			"just words\n",
			"m:1:1: a text (\"just words\") where an object is needed; begin with apiVersion: errand.dev/v1 and kind: Agent",
		},
		"a field beside the spec": {
			"apiVersion: errand.dev/v1\nkind: Tenant\nmetadata: {name: t}\nstatus: {}\n",
			"m:4:1: status: unknown field; want one of apiVersion, kind, metadata, spec",
		},
		"a directive": {
			"# first\n%YAML 1.2\n---\n" + tenant("{}"),
			"m:2:1: a YAML directive (%) is not supported; remove the line",
		},
		"text that is not UTF-8": {
			"# é\n# \xff\n",
			"m:2:3: not UTF-8 text; save the file as UTF-8",
		},
		"a document after the end marker": {
			tenant("{}") + "...\n" + tenant("{weight: x}"),
			"m:8:18: metadata.name: Tenant `t` is already given at line 3; rename or remove one\nm:9:16: spec.weight: a text (\"x\") where a whole number is needed",
		},
		"what would upset a terminal is quoted": {
			agent("  needs: {labels: {\"a\\e[31m\": b}}\n"),
			"m:6:31: spec.needs.labels.\"a\\x1b[31m\": \"a\\x1b[31m\" is not a key; want letters, digits, - _ . (1 to 63 characters), with or without a domain and / in front",
		},
		"half a pair of escapes in JSON is no character": {
			"{\"apiVersion\": \"errand.dev/v1\",\n\t\"kind\": \"\\ud83d\"}",
			"m:2:13: not YAML: found invalid Unicode character escape code",
		},
		"JSON gets positions too": {
			"{\n\t\"apiVersion\": \"errand.dev/v1\",\n\t\"kind\": \"Tenant\",\n\t\"metadata\": {\"name\": \"t\"},\n\t\"spec\": {\"wieght\": 1}\n}\n",
			"m:5:11: spec.wieght: unknown field; did you mean `weight`",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			set, err := parse(t, tt.input)
			if err == nil {
				t.Fatalf("no error; got %d objects", len(set.Objects))
			}
			if set != nil {
				t.Error("a set came with the error: something could be applied")
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseTakesATrigger(t *testing.T) {
	set, err := Parse([]File{{Name: "m", Data: strings.NewReader("apiVersion: errand.dev/v1\nkind: Trigger\nmetadata: {name: paid}\n" +
		"spec: {http: {secretRef: \"env:PAID_KEY\"}, run: {agent: clerk, key: message.data.id, input: \"{'n': message.data}\"}}\n")}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := &fleet.Trigger{Meta: fleet.Meta{Name: "paid"}, HTTP: &fleet.HTTPSource{Path: "paid", SecretRef: "env:PAID_KEY"},
		Run: fleet.TriggerRun{Agent: "clerk", Key: "message.data.id", Input: "{'n': message.data}"}}
	if diff := cmp.Diff(fleet.Object(want), set.Objects[0].Object); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseTakesWhatIsGood(t *testing.T) {
	tests := map[string]struct {
		input string
		want  []fleet.Object // before defaults
		lines []int
	}{
		"a file of comments and empty documents holds nothing": {fixture(t, "only-comments.yaml"), nil, nil},
		"an empty file holds nothing":                          {"", nil, nil},
		"a byte-order mark and CRLF line ends are fine": {
			fixture(t, "windows.yaml"),
			[]fleet.Object{&fleet.Tenant{Meta: fleet.Meta{Name: "dos"}, Weight: 7}}, []int{4},
		},
		"an anchor need not be used": {
			fixture(t, "unused-anchor.yaml"),
			[]fleet.Object{
				&fleet.Agent{
					Meta: fleet.Meta{Name: "counter"}, Shape: fleet.Job, Run: fleet.Run{Command: []string{"wc", "-l"}},
					Timeouts: fleet.Timeouts{Attempt: fleet.Duration(150 * time.Second)},
				},
				&fleet.Target{
					Meta: fleet.Meta{Name: "desk"}, Runtime: fleet.RuntimeLocal, Shapes: []fleet.Shape{fleet.Job},
					Capacity: fleet.Capacity{Runs: 2},
				},
			}, []int{3, 11},
		},
		"aliases and merges stand for what they name, and a field's own value goes first": {
			agent("  needs: {labels: &l {a: x, b: y}}\n  prefers:\n  - {weight: 1, labels: {<<: *l, b: z}}\n  - {weight: 2, labels: {<<: [{a: first}, *l]}}\n"),
			[]fleet.Object{&fleet.Agent{
				Meta: fleet.Meta{Name: "a"}, Shape: fleet.Pool,
				Needs: fleet.Needs{Labels: map[string]string{"a": "x", "b": "y"}},
				Prefers: []fleet.Preference{
					{Labels: map[string]string{"a": "x", "b": "z"}, Weight: 1},
					{Labels: map[string]string{"a": "first", "b": "y"}, Weight: 2},
				},
			}}, []int{3},
		},
		"a part of a group keeps the defaults of the rest, and no jitter is a choice": {
			agent("  retry: {backoff: {jitter: 0}}\n"),
			[]fleet.Object{&fleet.Agent{
				Meta: fleet.Meta{Name: "a"}, Shape: fleet.Pool,
				Retry: fleet.Retry{Backoff: fleet.Backoff{Initial: fleet.Duration(time.Second), Factor: 2, Max: fleet.Duration(5 * time.Minute)}},
			}}, []int{3},
		},
		"numbers, quantities and dates": {
			agent("  needs: {slots: 0o17, cpu: 2, memory: 1048576}\n  retain: 1w2d\n  identity: 2024-01-02\n  budget: {usd: 1}\n"),
			[]fleet.Object{&fleet.Agent{
				Meta: fleet.Meta{Name: "a"}, Shape: fleet.Pool, Identity: "2024-01-02", Budget: fleet.Budget{USD: 1},
				Needs:  fleet.Needs{Slots: 15, CPU: 2000, Memory: 1 << 20},
				Retain: fleet.Duration(9 * 24 * time.Hour),
			}}, []int{3},
		},
		"nulls and empty collections are as good as absent": {
			agent("  needs: {regions: [], labels: {}, tenantsOnly: }\n  retry:\n"),
			[]fleet.Object{&fleet.Agent{Meta: fleet.Meta{Name: "a"}, Shape: fleet.Pool}}, []int{3},
		},
		"a schema becomes compact JSON with sorted keys": {
			agent("  input:\n    schema: {type: object, properties: {on: {const: 1.50}, b: {enum: [null, 0x10, true, 2024-01-02, \"<\"]}}}\n"),
			[]fleet.Object{&fleet.Agent{
				Meta: fleet.Meta{Name: "a"}, Shape: fleet.Pool,
				Input: fleet.Schema(`{"properties":{"b":{"enum":[null,16,true,"2024-01-02","<"]},"on":{"const":1.50}},"type":"object"}`),
			}}, []int{3},
		},
		"JSON is read like YAML, with its pairs of escapes": {
			"{\"apiVersion\":\"errand.dev/v1\",\"kind\":\"Agent\",\n\t\"metadata\":{\"name\":\"a\",\"version\":\"\\ud83d\\ude00 \\\\ud83d\\\\ude00 \\/\"},\"spec\":{\"shape\":\"pool\"}}",
			[]fleet.Object{&fleet.Agent{Meta: fleet.Meta{Name: "a", Version: "😀 \\ud83d\\ude00 /"}, Shape: fleet.Pool}}, []int{2},
		},
		"one name for several kinds": {
			tenant("{}") + "---\napiVersion: errand.dev/v1\nkind: Target\nmetadata: {name: t}\nspec: {runtime: poll}\n",
			[]fleet.Object{
				&fleet.Tenant{Meta: fleet.Meta{Name: "t"}},
				&fleet.Target{Meta: fleet.Meta{Name: "t"}, Runtime: fleet.RuntimePoll},
			}, []int{3, 8},
		},
		"a marker with content behind it": {
			"--- {apiVersion: errand.dev/v1, kind: Tenant, metadata: {name: t}}\n--- # nothing\n",
			[]fleet.Object{&fleet.Tenant{Meta: fleet.Meta{Name: "t"}}}, []int{1},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			set, err := parse(t, tt.input)
			if err != nil {
				t.Fatal(err)
			}
			var got []fleet.Object
			var lines []int
			for _, o := range set.Objects {
				got, lines = append(got, o.Object), append(lines, o.Line)
			}
			for _, o := range tt.want {
				o.SetDefaults()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.lines, lines); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIssuesAreSortedOverFilesAndCutOff(t *testing.T) {
	bad := tenant("{weight: -1, priorityMax: 101}")
	_, err := Parse([]File{
		{Name: "z", Data: strings.NewReader(bad)},
		{Name: "a", Data: strings.NewReader(tenant("{}"))},
	}, Options{})
	want := "z:4:16: spec.weight: -1 is negative; want 1 to 10000\n" +
		"z:4:33: spec.priorityMax: 101 is outside 1 to 100\n" +
		"a:3:18: metadata.name: Tenant `t` is already given at line 3 of z; rename or remove one"
	if err == nil || err.Error() != want {
		t.Errorf("got error\n%v\nwant\n%s", err, want)
	}

	_, err = parse(t, strings.Repeat("---\nx\n", MaxIssues+1))
	e, ok := errors.AsType[*Error](err)
	if !ok || len(e.Issues) != MaxIssues || !e.Cut || !strings.HasSuffix(e.Error(), "\nmore than 100 errors; fix these first") {
		t.Errorf("got %v, want %d issues and a note that there are more", err, MaxIssues)
	}
}

func TestLoadReadsFilesAndFolders(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	named := func(name string) string { return strings.Replace(tenant("{}"), "name: t", "name: "+name, 1) }
	write("fleet/b.yaml", named("b"))
	write("fleet/a.yml", named("a"))
	write("fleet/c.json", named("c"))
	write("fleet/runs.jsonl", "{}\n")
	write("fleet/notes.txt", "not: [yaml")
	write("fleet/sub/d.yaml", named("d"))
	single := write("single.yaml", agent("  run: {command: [./x], dir: sub}\n"))
	write("empty/notes.txt", "")

	set, err := Load([]string{single, filepath.Join(dir, "fleet")})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range set.Objects {
		names = append(names, o.Name())
	}
	if diff := cmp.Diff([]string{"a", "a", "b", "c"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if got, want := set.Objects[0].Object.(*fleet.Agent).Run.Dir, filepath.Join(dir, "sub"); got != want {
		t.Errorf("run.dir is %q, want %q: relative to the manifest's file", got, want)
	}

	_, err = Load([]string{filepath.Join(dir, "missing.yaml"), filepath.Join(dir, "empty")})
	want := dir + "/missing.yaml: cannot be read: no such file or directory\n" +
		dir + "/empty: the folder holds no manifest; it needs a file *.yaml, *.yml or *.json"
	if err == nil || err.Error() != want {
		t.Errorf("got error\n%v\nwant\n%s", err, want)
	}
}

func TestRunDirStartsFromTheOptionsFolder(t *testing.T) {
	tests := map[string]struct{ run, dir, want string }{
		"a relative one is joined":        {"{command: [x], dir: ../y}", "/w/m", "/w/y"},
		"an absolute one stays":           {"{command: [x], dir: /z}", "/w/m", "/z"},
		"none is the folder itself":       {"{command: [x]}", "/w/m", "/w/m"},
		"without a folder it stays":       {"{command: [x], dir: ../y}", "", "../y"},
		"without a command it has no use": {"{url: http://h/r}", "/w/m", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			set, err := Parse([]File{{Name: "m", Data: strings.NewReader(agent("  run: " + tt.run + "\n"))}}, Options{Dir: tt.dir})
			if err != nil {
				t.Fatal(err)
			}
			if got := set.Objects[0].Object.(*fleet.Agent).Run.Dir; got != tt.want {
				t.Errorf("run.dir is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSuggestFindsTheNearest(t *testing.T) {
	fields := []string{"attempt", "maxAttempts", "max", "min", "run"}
	for word, want := range map[string]string{
		"atempt": "attempt", "attmept": "attempt", "maxattempts": "maxAttempts", "maximum": "", "mix": "max",
		"urn": "run", "": "", "x": "", strings.Repeat("a", 100): "",
	} {
		if got := suggest(word, fields); got != want {
			t.Errorf("suggest(%q) = %q, want %q", word, got, want)
		}
	}
}
