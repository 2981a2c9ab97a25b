package fleet

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func goodAgent() *Agent {
	return &Agent{Meta: Meta{Name: "a"}, Shape: Pool, Run: Run{Command: []string{"x"}}}
}

func goodTarget() *Target {
	return &Target{Meta: Meta{Name: "t"}, Runtime: RuntimeLocal, Capacity: Capacity{Runs: 1}}
}

func goodTenant() *Tenant {
	return &Tenant{Meta: Meta{Name: "t"}, Quota: Quota{Running: 1}}
}

func goodTrigger() *Trigger {
	return &Trigger{Meta: Meta{Name: "t"}, PubSub: &PubSubSource{Topic: "orders"}, Run: TriggerRun{Agent: "a"}}
}

func many(n int, format string) []string {
	var l []string
	for i := range n {
		l = append(l, fmt.Sprintf(format, i))
	}
	return l
}

func labelsOf(keys []string) map[string]string {
	m := make(map[string]string)
	for _, k := range keys {
		m[k] = ""
	}
	return m
}

func paths(problems []Problem) string {
	var l []string
	for _, p := range problems {
		l = append(l, p.Path)
	}
	return strings.Join(l, " ")
}

func TestAgentIsRefused(t *testing.T) {
	const minute = Duration(time.Minute)
	long := strings.Repeat("x", MaxTextLength+1)
	tests := map[string]struct {
		change func(*Agent)
		want   string // paths
	}{
		"without a name":                   {func(a *Agent) { a.Meta.Name = "" }, "metadata.name"},
		"with capitals in its name":        {func(a *Agent) { a.Meta.Name = "A" }, "metadata.name"},
		"with a hyphen at the end":         {func(a *Agent) { a.Meta.Name = "a-" }, "metadata.name"},
		"with a name that is too long":     {func(a *Agent) { a.Meta.Name = strings.Repeat("a", 64) }, "metadata.name"},
		"with too many labels":             {func(a *Agent) { a.Meta.Labels = labelsOf(many(65, "k%d")) }, "metadata.labels"},
		"with a bad label key":             {func(a *Agent) { a.Meta.Labels = map[string]string{"a b": ""} }, "metadata.labels.a b"},
		"with a bad label domain":          {func(a *Agent) { a.Meta.Labels = map[string]string{"A.b/c": ""} }, "metadata.labels.A.b/c"},
		"with a bad label value":           {func(a *Agent) { a.Meta.Labels = map[string]string{"k": "a b"} }, "metadata.labels.k"},
		"with a long version":              {func(a *Agent) { a.Version = long }, "metadata.version"},
		"with a version on two lines":      {func(a *Agent) { a.Version = "1\n2" }, "metadata.version"},
		"with a version in Latin-1":        {func(a *Agent) { a.Version = "\xe9" }, "metadata.version"},
		"without a shape":                  {func(a *Agent) { a.Shape = "" }, "spec.shape"},
		"with an unknown shape":            {func(a *Agent) { a.Shape = "lambda" }, "spec.shape"},
		"with command and url":             {func(a *Agent) { a.Run.URL = "http://h/r" }, "spec.run.url"},
		"with a url of another scheme":     {func(a *Agent) { a.Run = Run{URL: "ftp://h/r"} }, "spec.run.url"},
		"with a password in its url":       {func(a *Agent) { a.Run = Run{URL: "http://u:p@h/r"} }, "spec.run.url"},
		"with a url spoken to by pipe":     {func(a *Agent) { a.Run = Run{URL: "http://h/r", Protocol: Stdio} }, "spec.run.protocol"},
		"with stdio and no command":        {func(a *Agent) { a.Run = Run{Protocol: Stdio} }, "spec.run.protocol"},
		"with stdio and slots":             {func(a *Agent) { a.Run.Protocol, a.Run.Slots = Stdio, 2 }, "spec.run.slots"},
		"with an unknown protocol":         {func(a *Agent) { a.Run.Protocol = "grpc" }, "spec.run.protocol"},
		"with a build and no command":      {func(a *Agent) { a.Run = Run{Build: []string{"make"}} }, "spec.run.build"},
		"with an empty program":            {func(a *Agent) { a.Run.Command = []string{""} }, "spec.run.command[0]"},
		"with NUL in an argument":          {func(a *Agent) { a.Run.Command = []string{"x", "a\x00"} }, "spec.run.command[1]"},
		"with too many arguments":          {func(a *Agent) { a.Run.Command = many(MaxCommandArgs+1, "%d") }, "spec.run.command"},
		"with too long a command":          {func(a *Agent) { a.Run.Command = []string{strings.Repeat("x", MaxCommandBytes+1)} }, "spec.run.command"},
		"with too many variables":          {func(a *Agent) { a.Run.Env = labelsOf(many(MaxEnv+1, "K%d")) }, "spec.run.env"},
		"with too large variables":         {func(a *Agent) { a.Run.Env = map[string]string{"K": strings.Repeat("x", MaxEnvBytes)} }, "spec.run.env"},
		"with = in a variable's name":      {func(a *Agent) { a.Run.Env = map[string]string{"A=B": ""} }, "spec.run.env.A=B"},
		"with a variable of the runtime":   {func(a *Agent) { a.Run.Env = map[string]string{"ERRAND_TOKEN": ""} }, "spec.run.env.ERRAND_TOKEN"},
		"with NUL in a variable":           {func(a *Agent) { a.Run.Env = map[string]string{"K": "\x00"} }, "spec.run.env.K"},
		"with too many slots":              {func(a *Agent) { a.Run.Protocol, a.Run.Slots = Worker, MaxSlots+1 }, "spec.run.slots"},
		"with an expectation past its max": {func(a *Agent) { a.Lifetime = Lifetime{Expected: 2 * minute, Max: minute} }, "spec.lifetime.expected"},
		"with an unknown trigger":          {func(a *Agent) { a.Lifetime.Trigger = "moon" }, "spec.lifetime.trigger"},
		"with a schema that is no JSON":    {func(a *Agent) { a.Input = Schema("{") }, "spec.input.schema"},
		"with a schema that is a number":   {func(a *Agent) { a.Output = Schema("1") }, "spec.output.schema"},
		"with too large a schema":          {func(a *Agent) { a.Input = Schema(strings.Repeat(" ", MaxSchemaBytes+1)) }, "spec.input.schema"},
		"with less than no resources":      {func(a *Agent) { a.Needs = Needs{CPU: -1, Memory: -1, Slots: -1} }, "spec.needs.slots spec.needs.cpu spec.needs.memory"},
		"with a region twice":              {func(a *Agent) { a.Needs.Regions = []string{"r", "s", "r"} }, "spec.needs.regions[2]"},
		"with an empty region":             {func(a *Agent) { a.Needs.Regions = []string{""} }, "spec.needs.regions[0]"},
		"with too many regions":            {func(a *Agent) { a.Needs.Regions = many(MaxListLength+1, "%d") }, "spec.needs.regions"},
		"with a tenant that is no name":    {func(a *Agent) { a.Needs.TenantsOnly = []string{"A"} }, "spec.needs.tenantsOnly[0]"},
		"with a toleration of no taint":    {func(a *Agent) { a.Needs.Tolerates = []string{"=x"} }, "spec.needs.tolerates[0]"},
		"with a preference for nothing":    {func(a *Agent) { a.Prefers = []Preference{{Weight: 1}} }, "spec.prefers[0].labels"},
		"with a preference without weight": {
			func(a *Agent) { a.Prefers = []Preference{{Labels: map[string]string{"k": "v"}}} }, "spec.prefers[0].weight",
		},
		"with too many preferences":       {func(a *Agent) { a.Prefers = make([]Preference, MaxPreferences+1) }, "spec.prefers"},
		"with too many attempts":          {func(a *Agent) { a.Retry.MaxAttempts = MaxAttempts + 1 }, "spec.retry.maxAttempts"},
		"with a backoff past its max":     {func(a *Agent) { a.Retry.Backoff = Backoff{Initial: 2 * minute, Max: minute} }, "spec.retry.backoff.initial"},
		"with a shrinking backoff":        {func(a *Agent) { a.Retry.Backoff.Factor = 0.5 }, "spec.retry.backoff.factor"},
		"with a factor that is no number": {func(a *Agent) { a.Retry.Backoff.Factor = math.NaN() }, "spec.retry.backoff.factor"},
		"with too much jitter":            {func(a *Agent) { a.Retry.Backoff.Jitter = 1.1 }, "spec.retry.backoff.jitter"},
		"with a rule for nothing":         {func(a *Agent) { a.Retry.On = []RetryRule{{Action: ActionFail}} }, "spec.retry.on[0]"},
		"with a rule that does nothing":   {func(a *Agent) { a.Retry.On = []RetryRule{{Class: "user"}} }, "spec.retry.on[0].action"},
		"with an unknown class":           {func(a *Agent) { a.Retry.On = []RetryRule{{Class: "bad", Action: "stop"}} }, "spec.retry.on[0].class spec.retry.on[0].action"},
		"with too many rules":             {func(a *Agent) { a.Retry.On = make([]RetryRule, MaxRetryRules+1) }, "spec.retry.on"},
		"with an attempt past the run":    {func(a *Agent) { a.Timeouts = Timeouts{Attempt: 2 * minute, Run: minute} }, "spec.timeouts.attempt"},
		"with a silence past the attempt": {
			func(a *Agent) { a.Timeouts = Timeouts{Attempt: minute, Heartbeat: 2 * minute} }, "spec.timeouts.heartbeat",
		},
		"with negative times":            {func(a *Agent) { a.Timeouts.Queue, a.Retain = -1, -1 }, "spec.timeouts.queue spec.retain"},
		"with the longest negative time": {func(a *Agent) { a.Retain = math.MinInt64 }, "spec.retain"},
		"with a wait without end":        {func(a *Agent) { a.Timeouts.Queue, a.Retain = Forever, Forever }, "spec.timeouts.queue"},
		"with a time past ten years":     {func(a *Agent) { a.Retain = 3661 * 24 * 60 * minute }, "spec.retain"},
		"with a negative concurrency":    {func(a *Agent) { a.Concurrency = Concurrency{Max: -1, PerTenant: -1} }, "spec.concurrency.max spec.concurrency.perTenant"},
		"with an empty key":              {func(a *Agent) { a.Concurrency.PerKey = &PerKey{} }, "spec.concurrency.perKey.key spec.concurrency.perKey.max"},
		"with too long a key":            {func(a *Agent) { a.Concurrency.PerKey = &PerKey{strings.Repeat("x", MaxExprLength+1), 1} }, "spec.concurrency.perKey.key"},
		"with a negative budget":         {func(a *Agent) { a.Budget = Budget{USD: -1, Tokens: -1} }, "spec.budget.usd spec.budget.tokens"},
		"with a breach of nothing":       {func(a *Agent) { a.Budget.OnBreach = BreachAsk }, "spec.budget.onBreach"},
		"with a model that is no name":   {func(a *Agent) { a.Model = "A/b" }, "spec.model"},
		"with a callee that is no name":  {func(a *Agent) { a.Permissions.Call = []string{""} }, "spec.permissions.call[0]"},
		"with sessions in a pool":        {func(a *Agent) { a.Session.Idle = minute }, "spec.session"},
		"with too large sessions":        {func(a *Agent) { a.Shape, a.Session.MaxBytes = Instance, MaxSessionBytes+1 }, "spec.session.maxBytes"},
		"with an unknown policy":         {func(a *Agent) { a.Effects.OnUnknown, a.Backpressure = "hope", "drop" }, "spec.effects.onUnknown spec.backpressure"},
		"with a scale of nothing":        {func(a *Agent) { a.Scale.Max = 1 }, "spec.scale.signal spec.scale.target"},
		"with a scale without a maximum": {func(a *Agent) { a.Scale = Scale{Signal: "inFlight", Target: "1"} }, "spec.scale.max"},
		"with a scale upside down":       {func(a *Agent) { a.Scale = Scale{"inFlight", "1", 3, 2} }, "spec.scale.min"},
		"with an age without a unit":     {func(a *Agent) { a.Scale = Scale{"queueAge", "30", 0, 1} }, "spec.scale.target"},
		"with a depth in seconds":        {func(a *Agent) { a.Scale = Scale{"queueDepth", "30s", 0, 1} }, "spec.scale.target"},
		"with no depth":                  {func(a *Agent) { a.Scale = Scale{"queueDepth", "0", 0, 1} }, "spec.scale.target"},
		"with no age":                    {func(a *Agent) { a.Scale = Scale{"queueAge", "0s", 0, 1} }, "spec.scale.target"},
		"with an evaluation by nobody":   {func(a *Agent) { a.Evaluate = &Evaluate{} }, "spec.evaluate.by"},
		"with an evaluation by two":      {func(a *Agent) { a.Evaluate = &Evaluate{By: Evaluator{"1.0", "b"}} }, "spec.evaluate.by"},
		"with a share past one": {func(a *Agent) {
			a.Evaluate = &Evaluate{By: Evaluator{Agent: "b"}, Sample: 2, AlarmBelow: -1, Action: "cry"}
		}, "spec.evaluate.sample spec.evaluate.alarmBelow spec.evaluate.action"},
		"with a job in a pool": {func(a *Agent) { a.Job = &JobSpec{} }, "spec.job"},
		"with negative job fields": {func(a *Agent) {
			a.Shape, a.Job = Job, &JobSpec{Completions: new(-1), Parallelism: new(-1), BackoffLimit: new(-2)}
		}, "spec.job.completions spec.job.parallelism spec.job.backoffLimit"},
		"with indexes of no number":       {func(a *Agent) { a.Shape, a.Job = Job, &JobSpec{Parallelism: new(2), CompletionMode: "Indexed"} }, "spec.job.completions"},
		"with an unknown completion mode": {func(a *Agent) { a.Shape, a.Job = Job, &JobSpec{CompletionMode: "All"} }, "spec.job.completionMode"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := goodAgent()
			tt.change(a)
			if got := paths(a.Validate()); got != tt.want {
				t.Errorf("problems at %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTargetIsRefused(t *testing.T) {
	tests := map[string]struct {
		change func(*Target)
		want   string
	}{
		"without a name":          {func(t *Target) { t.Meta.Name = "" }, "metadata.name"},
		"without a runtime":       {func(t *Target) { t.Runtime = "" }, "spec.runtime"},
		"with an unknown runtime": {func(t *Target) { t.Runtime = "moon" }, "spec.runtime"},
		"with an unknown shape":   {func(t *Target) { t.Shapes = []Shape{Pool, "lambda"} }, "spec.shapes[1]"},
		"with a shape twice":      {func(t *Target) { t.Shapes = []Shape{Pool, Pool} }, "spec.shapes[1]"},
		"without capacity":        {func(t *Target) { t.Capacity.Runs = 0 }, "spec.capacity.runs"},
		"with negative capacity":  {func(t *Target) { t.Capacity = Capacity{-1, -1, -1} }, "spec.capacity.runs spec.capacity.cpu spec.capacity.memory"},
		"on http without address": {func(t *Target) { t.Runtime, t.Shapes = RuntimeHTTP, []Shape{Service} }, "spec.resource"},
		"on http at a path":       {func(t *Target) { t.Runtime, t.Shapes, t.Resource = RuntimeHTTP, []Shape{Service}, "/run" }, "spec.resource"},
		"on Cloud Run in a shape that its resource cannot have": {func(t *Target) {
			t.Runtime, t.Shapes, t.Resource = RuntimeCloudRun, []Shape{Job, Pool}, "projects/p/locations/r/jobs/j"
		}, "spec.shapes[1]"},
		"on Cloud Run in another region than its resource": {func(t *Target) {
			t.Runtime, t.Shapes, t.Resource, t.Region = RuntimeCloudRun, []Shape{Job}, "projects/p/locations/r/jobs/j", "mars"
		}, "spec.region"},
		"on Cloud Run without a resource": {func(t *Target) { t.Runtime, t.Shapes = RuntimeCloudRun, []Shape{Job} }, "spec.resource"},
		"on Cloud Run without shapes":     {func(t *Target) { t.Runtime, t.Resource = RuntimeCloudRun, "projects/p/locations/r/jobs/j" }, "spec.shapes"},
		"on Cloud Run at an address in the open": {func(t *Target) {
			t.Runtime, t.Shapes, t.Resource = RuntimeCloudRun, []Shape{Service}, "http://127.example.com"
		}, "spec.resource"},
		"on Cloud Run at an address with a password": {func(t *Target) {
			t.Runtime, t.Shapes, t.Resource = RuntimeCloudRun, []Shape{Service}, "https://a:b@example.com"
		}, "spec.resource"},
		"on Cloud Run with jobs at an address": {func(t *Target) {
			t.Runtime, t.Shapes, t.Resource = RuntimeCloudRun, []Shape{Service, Job}, "https://example.com"
		}, "spec.resource"},
		"with a bad label":              {func(t *Target) { t.Labels = map[string]string{"": ""} }, `spec.labels.""`},
		"with a bad taint":              {func(t *Target) { t.Taints = []string{"a=b c"} }, "spec.taints[0]"},
		"with a tenant that is no name": {func(t *Target) { t.Tenants = []string{"A"} }, "spec.tenants[0]"},
		"with a negative cost":          {func(t *Target) { t.Cost = Cost{-1, math.Inf(1)} }, "spec.cost.perRunSecondUSD spec.cost.perRunUSD"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			target := goodTarget()
			tt.change(target)
			if got := paths(target.Validate()); got != tt.want {
				t.Errorf("problems at %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTenantIsRefused(t *testing.T) {
	tests := map[string]struct {
		change func(*Tenant)
		want   string
	}{
		"with a name that is none":     {func(t *Tenant) { t.Meta.Name = "a.b" }, "metadata.name"},
		"with a negative weight":       {func(t *Tenant) { t.Weight = -1 }, "spec.weight"},
		"with too much weight":         {func(t *Tenant) { t.Weight = MaxWeight + 1 }, "spec.weight"},
		"with negative quotas":         {func(t *Tenant) { t.Quota = Quota{-1, -1} }, "spec.quota.running spec.quota.queued"},
		"borrowing from nobody":        {func(t *Tenant) { t.Borrow.Limit = 1 }, "spec.borrow.from"},
		"borrowing nothing":            {func(t *Tenant) { t.Borrow.From = "x" }, "spec.borrow.limit"},
		"borrowing above no quota":     {func(t *Tenant) { t.Quota, t.Borrow = Quota{}, Borrow{"x", 1} }, "spec.borrow"},
		"with a negative budget":       {func(t *Tenant) { t.Budget = TenantBudget{USD: -1, Tokens: -1} }, "spec.budget.usd spec.budget.tokens"},
		"with a budget per moon":       {func(t *Tenant) { t.Budget = TenantBudget{USD: 1, Per: "moon"} }, "spec.budget.per"},
		"with no budget per day":       {func(t *Tenant) { t.Budget.Per = "day" }, "spec.budget.per"},
		"with a priority past highest": {func(t *Tenant) { t.PriorityMax = 101 }, "spec.priorityMax"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tenant := goodTenant()
			tt.change(tenant)
			if got := paths(tenant.Validate()); got != tt.want {
				t.Errorf("problems at %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTriggerIsRefused(t *testing.T) {
	hook := func(ref string) func(*Trigger) {
		return func(t *Trigger) { t.PubSub, t.HTTP = nil, &HTTPSource{Path: "hook", SecretRef: ref} }
	}
	tests := map[string]struct {
		change func(*Trigger)
		want   string
	}{
		"with a name that is none":         {func(t *Trigger) { t.Meta.Name = "a.b" }, "metadata.name"},
		"without a source":                 {func(t *Trigger) { t.PubSub = nil }, "spec"},
		"with two sources":                 {func(t *Trigger) { t.HTTP = &HTTPSource{SecretRef: "env:KEY"} }, "spec.http"},
		"without a topic":                  {func(t *Trigger) { t.PubSub.Topic = "" }, "spec.pubsub.topic"},
		"with a topic of a reserved name":  {func(t *Trigger) { t.PubSub.Topic = "goog-orders" }, "spec.pubsub.topic"},
		"with a topic of no project":       {func(t *Trigger) { t.PubSub.Topic = "projects//topics/orders" }, "spec.pubsub.topic"},
		"with a topic in a topic":          {func(t *Trigger) { t.PubSub.Topic = "projects/p/topics/a/b" }, "spec.pubsub.topic"},
		"with fewer than no attempts":      {func(t *Trigger) { t.PubSub.MaxAttempts = -1 }, "spec.pubsub.maxAttempts"},
		"with attempts without end":        {func(t *Trigger) { t.PubSub.MaxAttempts = MaxDeliveries + 1 }, "spec.pubsub.maxAttempts"},
		"with a path of more than one":     {func(t *Trigger) { hook("env:KEY")(t); t.HTTP.Path = "a/b" }, "spec.http.path"},
		"without a secret":                 {hook(""), "spec.http.secretRef"},
		"with the secret itself":           {hook("hunter2-hunter2"), "spec.http.secretRef"},
		"with a file at no certain place":  {hook("file:key"), "spec.http.secretRef"},
		"with a second key that is none":   {hook("env:KEY,"), "spec.http.secretRef"},
		"with keys without end":            {hook(strings.Repeat("env:KEY,", MaxSecretRefs) + "env:KEY"), "spec.http.secretRef"},
		"without an agent":                 {func(t *Trigger) { t.Run.Agent = "" }, "spec.run.agent"},
		"with a workflow too":              {func(t *Trigger) { t.Run.Workflow = "w" }, "spec.run.workflow"},
		"with an expression too long":      {func(t *Trigger) { t.Run.Input = strings.Repeat("1", MaxExprLength+1) }, "spec.run.input"},
		"with an expression that is bytes": {func(t *Trigger) { t.Run.Key = "\xff" }, "spec.run.key"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			trigger := goodTrigger()
			tt.change(trigger)
			problems := trigger.Validate()
			if got := paths(problems); got != tt.want {
				t.Errorf("problems at %q, want %q", got, tt.want)
			}
			if text := fmt.Sprint(problems); strings.Contains(text, "hunter2") {
				t.Errorf("the secret is in %s", text)
			}
		})
	}
}

func TestGoodObjectsHaveNoProblems(t *testing.T) {
	longest := strings.Repeat("a", MaxNameLength)
	tests := map[string]Object{
		"an agent":                            goodAgent(),
		"an agent that others start":          &Agent{Meta: Meta{Name: longest}, Shape: Service},
		"an agent at an address":              &Agent{Meta: Meta{Name: "0"}, Shape: Service, Run: Run{URL: "https://h:1/r"}},
		"a process that is posted to":         &Agent{Meta: Meta{Name: "a"}, Shape: Service, Run: Run{Command: []string{"x"}, Protocol: HTTP}},
		"a work queue":                        &Agent{Meta: Meta{Name: "a"}, Shape: Job, Job: &JobSpec{Parallelism: new(3)}},
		"a label with a domain":               &Agent{Meta: Meta{Name: "a", Labels: map[string]string{"a.b/C_d": ""}}, Shape: Pool},
		"a target":                            goodTarget(),
		"a target bounded by its workers":     &Target{Meta: Meta{Name: "t"}, Runtime: RuntimePoll},
		"a target on Cloud Run at an address": &Target{Meta: Meta{Name: "t"}, Runtime: RuntimeCloudRun, Shapes: []Shape{Service, Instance}, Resource: "https://x.run.app", Capacity: Capacity{Runs: 1}},
		"a target on this machine":            &Target{Meta: Meta{Name: "t"}, Runtime: RuntimeCloudRun, Shapes: []Shape{Service}, Resource: "http://127.0.0.1:8080", Capacity: Capacity{Runs: 1}},
		"a target on Cloud Run":               &Target{Meta: Meta{Name: "t"}, Runtime: RuntimeCloudRun, Shapes: []Shape{Pool}, Resource: "projects/p/locations/r-1/workerPools/w", Capacity: Capacity{Runs: 1}},
		"a target at an address":              &Target{Meta: Meta{Name: "t"}, Runtime: RuntimeHTTP, Shapes: []Shape{Service}, Resource: "https://h/run", Capacity: Capacity{Runs: 1}},
		"a tenant":                            goodTenant(),
		"a tenant with nothing but its name":  &Tenant{Meta: Meta{Name: "t"}},
		"a trigger":                           goodTrigger(),
		"a trigger of another project's topic": &Trigger{
			Meta: Meta{Name: "t"}, PubSub: &PubSubSource{Topic: "projects/p/topics/orders", MaxAttempts: 7}, Run: TriggerRun{Agent: "a", Input: "message.data"},
		},
		"a trigger at an address": &Trigger{Meta: Meta{Name: "t"}, HTTP: &HTTPSource{SecretRef: "env:KEY,file:/run/old"}, Run: TriggerRun{Agent: "a"}},
		"a workflow":              goodWorkflow(),
	}
	for name, obj := range tests {
		t.Run(name, func(t *testing.T) {
			if problems := obj.Validate(); len(problems) > 0 {
				t.Errorf("before defaults: %v", problems)
			}
			obj.SetDefaults()
			if problems := obj.Validate(); len(problems) > 0 {
				t.Errorf("with defaults: %v", problems)
			}
		})
	}
}

func TestProblemsComeAllAtOnce(t *testing.T) {
	a := &Agent{Run: Run{Protocol: Stdio}, Retain: -1}
	got := a.Validate()
	if got := paths(got); got != "metadata.name spec.shape spec.run.protocol spec.retain" {
		t.Errorf("problems at %q", got)
	}
	if diff := cmp.Diff([]string{"spec.run.command"}, got[2].Related); diff != "" {
		t.Errorf("what the missing command is about (-want +got):\n%s", diff)
	}
}

func TestMessagesQuoteNoPassword(t *testing.T) {
	for _, url := range []string{"http://user:hunter2@host/run", "http://user:hunter2@[host/run", "user:hunter2@host"} {
		a := goodAgent()
		a.Run = Run{URL: url}
		problems := a.Validate()
		if len(problems) != 1 || strings.Contains(problems[0].Message, "hunter2") {
			t.Errorf("url %s: %v", url, problems)
		}
	}
}

func TestMessagesQuoteNoMoreThanALine(t *testing.T) {
	a := goodAgent()
	a.Meta.Labels = map[string]string{strings.Repeat("é", 5000): "", "a\x1b[2J": ""}
	a.Shape = Shape(strings.Repeat("x", 5000))
	for _, p := range a.Validate() {
		if s := p.String(); len(s) > 500 || strings.ContainsAny(s, "\x1b\n") {
			t.Errorf("%d bytes: %.600q", len(s), s)
		}
	}
	if !slices.Contains(Shapes(), Pool) || len(Shapes()) != 4 {
		t.Errorf("the shapes are %v", Shapes())
	}
}
