package fleet

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Validate returns every problem of the agent.
func (a *Agent) Validate() []Problem {
	c := new(check)
	c.meta(&a.Meta)
	if a.Shape == "" {
		c.add("spec.shape", "a shape is required: %s", list(Shapes()))
	}
	oneOf(c, "spec.shape", a.Shape, Shapes()...)
	c.run(&a.Run)
	c.lifetime(&a.Lifetime)
	c.schema("spec.input.schema", a.Input)
	c.schema("spec.output.schema", a.Output)
	c.needs(&a.Needs)
	c.prefers(a.Prefers)
	c.retry(&a.Retry)
	c.timeouts(&a.Timeouts)
	c.concurrency(&a.Concurrency)
	c.budget(&a.Budget)
	c.ref("spec.model", a.Model)
	c.names("spec.permissions.call", a.Permissions.Call)
	c.texts("spec.permissions.effects", a.Permissions.Effects)
	c.texts("spec.permissions.state", a.Permissions.State)
	c.texts("spec.permissions.secrets", a.Permissions.Secrets)
	c.text("spec.identity", a.Identity, MaxTextLength)
	c.session(a)
	oneOf(c, "spec.effects.onUnknown", a.Effects.OnUnknown, UnknownAsk, UnknownReconcile, UnknownRepeat, UnknownFail)
	c.length("spec.effects.settle", a.Effects.Settle)
	oneOf(c, "spec.backpressure", a.Backpressure, BackpressureQueue, BackpressureSlow, BackpressureShed)
	c.scale(&a.Scale)
	if a.Retain != Forever {
		c.length("spec.retain", a.Retain)
	}
	c.evaluate(a.Evaluate)
	c.job(a)
	return c.problems
}

func (c *check) run(r *Run) {
	const path = "spec.run"
	c.command(path+".command", r.Command)
	c.command(path+".build", r.Build)
	c.text(path+".dir", r.Dir, MaxPathLength)
	c.env(path+".env", r.Env)
	c.count(path+".slots", int64(r.Slots), MaxSlots)
	oneOf(c, path+".protocol", r.Protocol, Worker, Stdio, HTTP)
	if r.URL != "" {
		c.address(path+".url", r.URL)
	}

	switch {
	case r.URL != "" && len(r.Command) > 0:
		c.add(path+".url", "command and url exclude each other; keep url for what already runs, command for what is to be started")
	case r.URL != "" && (r.Protocol == Worker || r.Protocol == Stdio):
		c.add(path+".protocol", "%s needs a command; a url is spoken to with http", r.Protocol)
	case r.Protocol == Stdio && len(r.Command) == 0:
		c.add(path+".protocol", "stdio needs command: the program to start for each run")
		c.relate(path + ".command")
	case r.Protocol == Stdio && r.Slots > 1:
		c.add(path+".slots", "stdio starts one process per run, so slots is 1; use concurrency.max to bound the runs, or protocol worker")
	}
	if len(r.Build) > 0 && len(r.Command) == 0 {
		c.add(path+".build", "build needs command: the program to start once it is built")
		c.relate(path + ".command")
	}
}

func (c *check) command(path string, args []string) {
	if len(args) == 0 {
		return
	}
	if len(args) > MaxCommandArgs {
		c.add(path, "%d arguments are too many; want at most %d", len(args), MaxCommandArgs)
		return
	}
	total := 0
	for i, arg := range args {
		total += len(arg)
		if !isProcessText(arg) {
			c.add(At(path, i), "an argument is valid UTF-8 without NUL characters")
		}
	}
	if total > MaxCommandBytes {
		c.add(path, "%d bytes are too long; want at most %d", total, MaxCommandBytes)
	}
	if args[0] == "" {
		c.add(At(path, 0), "a program is required")
	}
}

// isProcessText accepts what can be handed to a process and written down.
func isProcessText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func (c *check) env(path string, env map[string]string) {
	if len(env) > MaxEnv {
		c.add(path, "%d variables are too many; want at most %d", len(env), MaxEnv)
		return
	}
	total := 0
	for _, k := range slices.Sorted(maps.Keys(env)) {
		total += len(k) + len(env[k])
		switch {
		case k == "" || !isProcessText(k) || strings.Contains(k, "="):
			c.add(At(path, Key(k)), "%q is not the name of a variable", clip(k))
		case strings.HasPrefix(k, "ERRAND_"):
			c.add(At(path, Key(k)), "names that begin with ERRAND_ are set by the runtime; choose another")
		case !isProcessText(env[k]):
			c.add(At(path, Key(k)), "a value is valid UTF-8 without NUL characters")
		}
	}
	if total > MaxEnvBytes {
		c.add(path, "%d bytes of names and values are too many; want at most %d", total, MaxEnvBytes)
	}
}

func (c *check) lifetime(l *Lifetime) {
	const path = "spec.lifetime"
	c.length(path+".expected", l.Expected)
	c.length(path+".max", l.Max)
	if l.Expected > 0 && l.Max > 0 && l.Expected > l.Max {
		c.add(path+".expected", "%s is longer than max, %s", l.Expected, l.Max)
	}
	oneOf(c, path+".state", l.State, "none", "session")
	oneOf(c, path+".trigger", l.Trigger, "request", "queue", "schedule", "parent")
}

// schema checks the form alone: whether it is a JSON Schema is for the package
// that compiles it.
func (c *check) schema(path string, s Schema) {
	if len(s) == 0 {
		return
	}
	if len(s) > MaxSchemaBytes {
		c.add(path, "%d bytes are too long; want at most %d", len(s), MaxSchemaBytes)
		return
	}
	if !json.Valid(s) {
		c.add(path, "the schema is not valid JSON")
		return
	}
	if s[0] != '{' && string(s) != "true" && string(s) != "false" {
		c.add(path, "a schema is an object, true or false")
	}
}

func (c *check) needs(n *Needs) {
	const path = "spec.needs"
	c.count(path+".slots", int64(n.Slots), MaxSlots)
	c.resources(path, n.CPU, n.Memory)
	c.text(path+".accelerator", n.Accelerator, MaxTextLength)
	c.texts(path+".regions", n.Regions)
	c.labels(path+".labels", n.Labels)
	c.names(path+".tenantsOnly", n.TenantsOnly)
	c.text(path+".dataIn", n.DataIn, MaxTextLength)
	c.taints(path+".tolerates", n.Tolerates)
}

func (c *check) resources(path string, cpu CPU, memory Bytes) {
	if cpu < 0 {
		c.add(path+".cpu", "%s is negative; want 0 or more, like 500m", cpu)
	}
	if memory < 0 {
		c.add(path+".memory", "%s is negative; want 0 or more, like 256Mi", memory)
	}
}

func (c *check) prefers(prefers []Preference) {
	const path = "spec.prefers"
	if len(prefers) > MaxPreferences {
		c.add(path, "%d preferences are too many; want at most %d", len(prefers), MaxPreferences)
		return
	}
	for i, p := range prefers {
		if len(p.Labels) == 0 {
			c.add(At(path, i, "labels"), "labels are required: what the preferred target has")
		}
		c.labels(At(path, i, "labels"), p.Labels)
		if p.Weight < 1 || p.Weight > 100 {
			c.add(At(path, i, "weight"), "%d is outside 1 to 100", p.Weight)
		}
	}
}

func (c *check) retry(r *Retry) {
	const path = "spec.retry"
	c.count(path+".maxAttempts", int64(r.MaxAttempts), MaxAttempts)

	b := r.Backoff
	c.length(path+".backoff.initial", b.Initial)
	c.length(path+".backoff.max", b.Max)
	if b.Initial > 0 && b.Max > 0 && b.Initial > b.Max {
		c.add(path+".backoff.initial", "%s is longer than max, %s", b.Initial, b.Max)
		c.relate(path + ".backoff.max")
	}
	if b.Factor != 0 && !(b.Factor >= 1 && b.Factor <= MaxBackoffFactor) {
		c.add(path+".backoff.factor", "%v is outside 1 to %d", b.Factor, MaxBackoffFactor)
	}
	c.ratio(path+".backoff.jitter", b.Jitter)

	if len(r.On) > MaxRetryRules {
		c.add(path+".on", "%d rules are too many; want at most %d", len(r.On), MaxRetryRules)
		return
	}
	for i, rule := range r.On {
		rulePath := At(path, "on", i)
		if rule.Class == "" && rule.Code == "" {
			c.add(rulePath, "a rule needs class, code or both, to say which failures it is for")
			c.relate(rulePath+".class", rulePath+".code")
		}
		oneOf(c, rulePath+".class", rule.Class, Classes()...)
		c.text(rulePath+".code", rule.Code, MaxTextLength)
		if rule.Action == "" {
			c.add(rulePath+".action", "an action is required: retry, fail, ignore")
		}
		oneOf(c, rulePath+".action", rule.Action, ActionRetry, ActionFail, ActionIgnore)
	}
}

func (c *check) timeouts(t *Timeouts) {
	const path = "spec.timeouts"
	c.length(path+".queue", t.Queue)
	c.length(path+".attempt", t.Attempt)
	c.length(path+".run", t.Run)
	c.length(path+".heartbeat", t.Heartbeat)
	if t.Attempt > 0 && t.Run > 0 && t.Attempt > t.Run {
		c.add(path+".attempt", "%s is longer than run, %s; an attempt is a part of the run", t.Attempt, t.Run)
	}
	if t.Heartbeat > 0 && t.Attempt > 0 && t.Heartbeat > t.Attempt {
		c.add(path+".heartbeat", "%s is longer than attempt, %s, so it would never be noticed", t.Heartbeat, t.Attempt)
	}
}

func (c *check) concurrency(v *Concurrency) {
	const path = "spec.concurrency"
	c.count(path+".max", int64(v.Max), MaxRuns)
	c.count(path+".perTenant", int64(v.PerTenant), MaxRuns)
	if v.PerKey == nil {
		return
	}
	if v.PerKey.Key == "" {
		c.add(path+".perKey.key", "a key is required: an expression over input, tenant and labels, like \"input.vendor\"")
	}
	c.expression(path+".perKey.key", v.PerKey.Key)
	if v.PerKey.Max == 0 {
		c.add(path+".perKey.max", "want 1 or more runs per key")
	}
	c.count(path+".perKey.max", int64(v.PerKey.Max), MaxRuns)
}

// expression checks the length alone: whether it is good CEL is for the package
// that compiles it.
func (c *check) expression(path, s string) {
	switch {
	case len(s) > MaxExprLength:
		c.add(path, "%d bytes are too long; want at most %d", len(s), MaxExprLength)
	case !utf8.ValidString(s):
		c.add(path, "the expression is not valid UTF-8")
	}
}

func (c *check) budget(b *Budget) {
	const path = "spec.budget"
	c.amount(path+".usd", b.USD, MaxBudgetUSD)
	c.count(path+".tokens", b.Tokens, MaxBudgetTokens)
	oneOf(c, path+".onBreach", b.OnBreach, BreachFail, BreachAsk)
	if b.OnBreach != "" && b.USD == 0 && b.Tokens == 0 {
		c.add(path+".onBreach", "there is nothing to breach; give usd, tokens or both")
		c.relate(path+".usd", path+".tokens")
	}
}

func (c *check) session(a *Agent) {
	const path = "spec.session"
	if a.Session != (Session{}) && a.Shape != Instance {
		c.add(path, "only shape instance keeps sessions; this agent's shape is %q", clip(string(a.Shape)))
		c.relate("spec.shape")
		return
	}
	if a.Session.MaxBytes < 0 || a.Session.MaxBytes > MaxSessionBytes {
		c.add(path+".maxBytes", "%s is outside 1 to %s", a.Session.MaxBytes, Bytes(MaxSessionBytes))
	}
	c.length(path+".idle", a.Session.Idle)
}

func (c *check) scale(s *Scale) {
	const path = "spec.scale"
	if *s == (Scale{}) {
		return
	}
	if s.Signal == "" {
		c.add(path+".signal", "a signal is required: queueDepth, queueAge, inFlight")
	}
	oneOf(c, path+".signal", s.Signal, "queueDepth", "queueAge", "inFlight")
	switch {
	case s.Target == "":
		c.add(path+".target", "a target is required: a duration for queueAge, a number for the other signals")
	case s.Signal == "queueAge":
		if d, err := s.Target.Duration(); err != nil {
			c.add(path+".target", "%v", err)
		} else if d <= 0 {
			c.add(path+".target", "%s is not above zero", s.Target)
		}
	case s.Signal == "queueDepth" || s.Signal == "inFlight":
		if n, err := s.Target.Number(); err != nil {
			c.add(path+".target", "%q is not a whole number, which %s needs", clip(string(s.Target)), s.Signal)
		} else if n < 1 || n > MaxRuns {
			c.add(path+".target", "%d is outside 1 to %d", n, MaxRuns)
		}
	}
	c.count(path+".min", int64(s.Min), MaxRuns)
	c.count(path+".max", int64(s.Max), MaxRuns)
	if s.Max == 0 {
		c.add(path+".max", "want 1 or more workers at most")
	} else if s.Min > s.Max {
		c.add(path+".min", "%d is above max, %d", s.Min, s.Max)
	}
}

func (c *check) evaluate(e *Evaluate) {
	const path = "spec.evaluate"
	if e == nil {
		return
	}
	c.ratio(path+".sample", e.Sample)
	switch {
	case e.By.CEL == "" && e.By.Agent == "":
		c.add(path+".by", "an evaluator is required: {cel: EXPRESSION} or {agent: NAME}")
		c.relate(path+".by.cel", path+".by.agent")
	case e.By.CEL != "" && e.By.Agent != "":
		c.add(path+".by", "cel and agent exclude each other; keep one")
	}
	c.expression(path+".by.cel", e.By.CEL)
	c.ref(path+".by.agent", e.By.Agent)
	c.count(path+".baseline", int64(e.Baseline), MaxRuns)
	c.ratio(path+".alarmBelow", e.AlarmBelow)
	oneOf(c, path+".action", e.Action, "alarm", "canary", "quarantine")
}

func (c *check) job(a *Agent) {
	const path = "spec.job"
	j := a.Job
	if j == nil {
		return
	}
	if a.Shape != Job {
		c.add(path, "only shape job has it; this agent's shape is %q", clip(string(a.Shape)))
		c.relate("spec.shape")
		return
	}
	for _, f := range []struct {
		name  string
		value *int
		most  int64
	}{
		{"completions", j.Completions, MaxCompletions},
		{"parallelism", j.Parallelism, MaxParallelism},
		{"backoffLimit", j.BackoffLimit, MaxAttempts},
	} {
		if f.value != nil && (*f.value < 0 || int64(*f.value) > f.most) {
			c.add(path+"."+f.name, "%d is outside 0 to %d", *f.value, f.most)
		}
	}
	oneOf(c, path+".completionMode", j.CompletionMode, "NonIndexed", "Indexed")
	if j.CompletionMode == "Indexed" && j.Completions == nil && j.Parallelism != nil {
		c.add(path+".completions", "completionMode Indexed needs completions: the number of indexes")
	}
}

// Validate returns every problem of the target.
func (t *Target) Validate() []Problem {
	c := new(check)
	c.meta(&t.Meta)
	runtimes := []Runtime{RuntimeLocal, RuntimeCloudRun, RuntimeHTTP, RuntimePoll}
	if t.Runtime == "" {
		c.add("spec.runtime", "a runtime is required: %s", list(runtimes))
	}
	oneOf(c, "spec.runtime", t.Runtime, runtimes...)
	items(c, "spec.shapes", t.Shapes, len(Shapes()), func(path string, s Shape) {
		if s == "" {
			c.add(path, "an empty text; want one of %s", list(Shapes()))
		}
		oneOf(c, path, s, Shapes()...)
	})
	if len(t.Shapes) == 0 && (t.Runtime == RuntimeCloudRun || t.Runtime == RuntimeHTTP) {
		c.add("spec.shapes", "shapes are required for runtime %s: which of %s its resource is", t.Runtime, list(Shapes()))
	}
	c.resource(t)
	c.text("spec.region", t.Region, MaxTextLength)
	c.text("spec.accelerator", t.Accelerator, MaxTextLength)
	c.labels("spec.labels", t.Labels)
	c.taints("spec.taints", t.Taints)
	c.names("spec.tenants", t.Tenants)
	c.texts("spec.data", t.Data)
	c.text("spec.identity", t.Identity, MaxTextLength)
	c.capacity(t)
	c.amount("spec.cost.perRunSecondUSD", t.Cost.PerRunSecondUSD, MaxBudgetUSD)
	c.amount("spec.cost.perRunUSD", t.Cost.PerRunUSD, MaxBudgetUSD)
	return c.problems
}

func (c *check) resource(t *Target) {
	const path = "spec.resource"
	switch t.Runtime {
	case RuntimeHTTP:
		if t.Resource == "" {
			c.add(path, "runtime http needs the address that takes the runs, like https://HOST/run")
			return
		}
		c.address(path, t.Resource)
	case RuntimeCloudRun:
		if strings.Contains(t.Resource, "://") {
			c.served(path, t)
			return
		}
		c.text(path, t.Resource, MaxURLLength)
		if !isCloudRunName(t.Resource) {
			c.add(path, "%q does not name a Cloud Run resource; want projects/PROJECT/locations/REGION/services/NAME (or jobs, workerPools, instances), or the https address of a service or instance", clip(t.Resource))
			return
		}
		c.hosted(path, t)
	default:
		c.text(path, t.Resource, MaxURLLength)
	}
}

// hosts are the shapes that a resource of a collection can have. A service of one container stands for an instance where a
// region has none.
var hosts = map[string][]Shape{"services": {Service, Instance}, "instances": {Instance, Service}, "workerPools": {Pool}, "jobs": {Job}}

// hosted checks that a resource can be what its target says.
func (c *check) hosted(path string, t *Target) {
	parts := strings.Split(t.Resource, "/")
	region, collection := parts[3], parts[4]
	for i, s := range t.Shapes {
		if !slices.Contains(hosts[collection], s) {
			c.add(At("spec.shapes", i), "%s holds no runs of shape %s; want %s", t.Resource, s, list(hosts[collection]))
			c.relate(path)
		}
	}
	if t.Region != "" && t.Region != region {
		c.add("spec.region", "%q is not the region of the resource, which is %s", clip(t.Region), region)
		c.relate(path)
	}
}

// served checks an address in place of the name of a service or instance. An identity token is sent there: it is https,
// or on this machine.
func (c *check) served(path string, t *Target) {
	before := len(c.problems)
	c.address(path, t.Resource)
	if len(c.problems) > before {
		return
	}
	u, err := url.Parse(t.Resource)
	if err != nil || u.Scheme != "https" && !loopback(u.Hostname()) {
		c.add(path, "an identity token is sent to this address; want https (http serves on this machine alone)")
	}
	for _, s := range t.Shapes {
		if s != Service && s != Instance {
			c.add(path, "an address takes the runs of shapes %s and %s; for shape %s name projects/PROJECT/locations/REGION/COLLECTION/NAME", Service, Instance, s)
			return
		}
	}
}

func loopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.") && strings.Trim(host, "0123456789.") == ""
}

// isCloudRunName accepts projects/P/locations/R/COLLECTION/NAME.
func isCloudRunName(s string) bool {
	parts := strings.Split(s, "/")
	return len(parts) == 6 && parts[0] == "projects" && parts[1] != "" && parts[2] == "locations" && IsName(parts[3]) &&
		slices.Contains([]string{"services", "jobs", "workerPools", "instances"}, parts[4]) && IsName(parts[5])
}

func (c *check) capacity(t *Target) {
	const path = "spec.capacity"
	if t.Capacity.Runs == 0 && t.Runtime != RuntimePoll {
		c.add(path+".runs", "want 1 or more: how many runs it holds at once")
	}
	c.count(path+".runs", int64(t.Capacity.Runs), MaxRuns)
	c.resources(path, t.Capacity.CPU, t.Capacity.Memory)
}

// Validate returns every problem of the tenant.
func (t *Tenant) Validate() []Problem {
	c := new(check)
	c.meta(&t.Meta)
	c.count("spec.weight", int64(t.Weight), MaxWeight)
	c.count("spec.quota.running", int64(t.Quota.Running), MaxRuns)
	c.count("spec.quota.queued", int64(t.Quota.Queued), MaxRuns)
	c.borrow(t)
	c.amount("spec.budget.usd", t.Budget.USD, MaxBudgetUSD)
	c.count("spec.budget.tokens", t.Budget.Tokens, MaxBudgetTokens)
	oneOf(c, "spec.budget.per", t.Budget.Per, "hour", "day", "week", "month")
	if t.Budget.Per != "" && t.Budget.USD == 0 && t.Budget.Tokens == 0 {
		c.add("spec.budget.per", "there is nothing to spend per %s; give usd, tokens or both", clip(t.Budget.Per))
		c.relate("spec.budget.usd", "spec.budget.tokens")
	}
	if t.PriorityMax < 0 || t.PriorityMax > MaxPriority {
		c.add("spec.priorityMax", "%d is outside 1 to %d", t.PriorityMax, MaxPriority)
	}
	return c.problems
}

func (c *check) borrow(t *Tenant) {
	const path = "spec.borrow"
	if t.Borrow == (Borrow{}) {
		return
	}
	c.name(path+".from", t.Borrow.From)
	if t.Borrow.Limit == 0 {
		c.add(path+".limit", "want 1 or more: how many runs above the quota")
	}
	c.count(path+".limit", int64(t.Borrow.Limit), MaxRuns)
	if t.Quota.Running == 0 {
		c.add(path, "a tenant without quota.running has no bound to borrow above")
		c.relate("spec.quota.running")
	}
}

// Validate returns every problem of the trigger. Whether its expressions compile
// is for the package that compiles them.
func (t *Trigger) Validate() []Problem {
	c := new(check)
	c.meta(&t.Meta)
	switch {
	case t.PubSub == nil && t.HTTP == nil:
		c.add("spec", "a source is required: pubsub: {topic: NAME} or http: {secretRef: env:NAME}")
		c.relate("spec.pubsub", "spec.http")
	case t.PubSub != nil && t.HTTP != nil:
		c.add("spec.http", "pubsub and http exclude each other; declare a trigger for each")
	}
	if s := t.PubSub; s != nil {
		if !isTopic(s.Topic) {
			c.add("spec.pubsub.topic", "%q names no topic; want NAME or projects/PROJECT/topics/NAME", clip(s.Topic))
		}
		c.count("spec.pubsub.maxAttempts", int64(s.MaxAttempts), MaxDeliveries)
	}
	if s := t.HTTP; s != nil {
		c.ref("spec.http.path", s.Path)
		c.secretRef("spec.http.secretRef", s.SecretRef)
	}
	c.triggerRun("spec.run", &t.Run)
	return c.problems
}

func (c *check) triggerRun(path string, r *TriggerRun) {
	c.callee(path, r.Agent, r.Workflow)
	for _, e := range []struct{ field, source string }{{"input", r.Input}, {"key", r.Key}, {"tenant", r.Tenant}} {
		c.expression(path+"."+e.field, e.source)
	}
}

// isTopic accepts what Pub/Sub takes for the name of a topic, alone or in full.
func isTopic(s string) bool {
	if rest, ok := strings.CutPrefix(s, "projects/"); ok {
		project, topic, ok := strings.Cut(rest, "/topics/")
		return ok && project != "" && !strings.Contains(project, "/") && isTopic(topic)
	}
	if len(s) < 3 || len(s) > 255 || !(s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z') || strings.HasPrefix(s, "goog") {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("-_.~+%", r))
	})
}

// secretRef checks that a text says where a secret is, and is none itself. It is
// not quoted: it may be one.
func (c *check) secretRef(path, s string) {
	if s == "" {
		c.add(path, "required: where the key of the signatures is, env:NAME or file:PATH")
		return
	}
	c.text(path, s, MaxPathLength)
	refs := strings.Split(s, ",")
	if len(refs) > MaxSecretRefs {
		c.add(path, "%d keys are too many; want at most %d", len(refs), MaxSecretRefs)
		return
	}
	for _, ref := range refs {
		name, isEnv := strings.CutPrefix(ref, "env:")
		file, isFile := strings.CutPrefix(ref, "file:")
		if !(isEnv && name != "" && !strings.Contains(name, "=") || isFile && strings.HasPrefix(file, "/")) {
			c.add(path, "want env:NAME or file:/PATH, the place of the key and not the key itself")
			return
		}
	}
}
