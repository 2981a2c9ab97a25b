package deploy

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/server/oidc"
)

// envPlan names the file with the plan of the example installation, as JSON: `make terraform` makes one.
const envPlan = "TFCHECK_PLAN_JSON"

// plan is what Terraform would make.
type plan struct {
	Changes []change `json:"resource_changes"`
	Values  struct {
		Outputs map[string]struct{ Value any } `json:"outputs"`
	} `json:"planned_values"`
}

type change struct {
	Address string `json:"address"`
	Type    string `json:"type"`
	Change  struct {
		After map[string]any `json:"after"`
	} `json:"change"`
}

// text is an attribute of the resource; blocks on the way to it are taken to have one element.
func (c *change) text(path ...string) string {
	v := any(c.Change.After)
	for _, key := range path {
		if list, ok := v.([]any); ok && len(list) > 0 {
			v = list[0]
		}
		block, _ := v.(map[string]any)
		v = block[key]
	}
	s, _ := v.(string)
	return s
}

// block is the first element of a nested block.
func block(in map[string]any, name string) map[string]any {
	list, _ := in[name].([]any)
	if len(list) == 0 {
		return nil
	}
	b, _ := list[0].(map[string]any)
	return b
}

func (p *plan) of(kinds ...string) []change {
	var out []change
	for _, c := range p.Changes {
		if slices.Contains(kinds, strings.TrimPrefix(c.Type, "google_")) {
			out = append(out, c)
		}
	}
	return out
}

// TestPlan looks at what Terraform would make of the example installation.
func TestPlan(t *testing.T) {
	file := os.Getenv(envPlan)
	if file == "" {
		t.Skipf("%s is not set: make terraform TFCHECK=PROGRAM plans", envPlan)
	}
	p := new(plan)
	if err := readJSON(file, p); err != nil {
		t.Fatal(err)
	}
	for name, check := range map[string]func(*testing.T, *plan){
		"has exactly the indexes of the code":              planHasExactlyTheIndexesOfTheCode,
		"gives each workload an identity of its own":       planGivesEachWorkloadAnIdentityOfItsOwn,
		"grants what each needs and nothing else":          planGrantsWhatEachNeedsAndNothingElse,
		"pushes as the one that may call":                  planPushesAsTheOneThatMayCall,
		"tells the control plane of each workload":         planTellsTheControlPlaneOfEachWorkload,
		"configures what the control plane can make of it": planConfiguresTheControlPlane,
	} {
		t.Run(name, func(t *testing.T) { check(t, p) })
	}
}

func planHasExactlyTheIndexesOfTheCode(t *testing.T, p *plan) {
	t.Helper()
	var declared struct {
		Indexes []struct {
			Collection string `json:"collection"`
			Fields     []struct{ Field, Order string }
		} `json:"indexes"`
		Exemptions, TTL []struct{ Collection, Field string }
	}
	if err := readJSON(filepath.Join(root(t), "terraform", "modules", "firestore", "indexes.json"), &declared); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, i := range declared.Indexes {
		line := "index " + i.Collection
		for _, f := range i.Fields {
			line += " " + f.Field + " " + f.Order
		}
		want = append(want, line)
	}
	for _, f := range declared.Exemptions {
		want = append(want, "exempt "+f.Collection+" "+f.Field)
	}
	for _, f := range declared.TTL {
		want = append(want, "expires "+f.Collection+" "+f.Field)
	}
	for _, c := range p.of("firestore_index") {
		line := "index " + c.text("collection")
		fields, _ := c.Change.After["fields"].([]any)
		for _, f := range fields {
			block, _ := f.(map[string]any)
			line += fmt.Sprintf(" %v %v", block["field_path"], block["order"])
		}
		got = append(got, line)
	}
	for _, c := range p.of("firestore_field") {
		if list, _ := c.Change.After["index_config"].([]any); len(list) > 0 {
			got = append(got, "exempt "+c.text("collection")+" "+c.text("field"))
		}
		if list, _ := c.Change.After["ttl_config"].([]any); len(list) > 0 {
			got = append(got, "expires "+c.text("collection")+" "+c.text("field"))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := gocmp.Diff(want, got); d != "" || len(want) == 0 {
		t.Errorf("indexes (-code +plan):\n%s", d)
	}
}

// workloads of the plan, by resource name, with the account of each.
func workloads(p *plan) map[string]string {
	out := map[string]string{}
	for _, c := range p.of("cloud_run_v2_service", "cloud_run_v2_worker_pool", "cloud_run_v2_job", "cloud_run_v2_instance") {
		account := cmp.Or(c.text("template", "service_account"), c.text("template", "template", "service_account"), c.text("service_account"))
		out[c.text("id")] = account
	}
	return out
}

func planGivesEachWorkloadAnIdentityOfItsOwn(t *testing.T, p *plan) {
	t.Helper()
	made := map[string]bool{}
	for _, c := range p.of("service_account") {
		made[c.text("email")] = true
	}
	owner := map[string]string{}
	for id, account := range workloads(p) {
		if !made[account] {
			t.Errorf("%s runs as %q, which is not an account of the plan", id, account)
		}
		if other, taken := owner[account]; taken {
			t.Errorf("%s and %s share %s", id, other, account)
		}
		owner[account] = id
	}
	for _, kind := range []string{"services", "instances", "workerPools", "jobs"} {
		if !slices.ContainsFunc(slices.Collect(keys(workloads(p))), func(id string) bool { return strings.Contains(id, "/"+kind+"/") }) {
			t.Errorf("the example fleet has none of the %s", kind)
		}
	}
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// grant is a role on a resource; the resource is what Terraform calls it, the project excepted.
type grant struct{ role, on string }

// grants of the plan by the name of the account, without its domain.
func grants(p *plan) map[string][]grant {
	out := map[string][]grant{}
	for _, c := range p.Changes {
		if !strings.HasSuffix(c.Type, "_iam_member") {
			continue
		}
		kind := strings.TrimSuffix(strings.TrimPrefix(c.Type, "google_"), "_iam_member")
		on := kind + " " + cmp.Or(c.text("topic"), c.text("subscription"), c.text("secret_id"), c.text("repository"), c.text("name"), c.text("service_account_id"))
		role := c.text("role")
		account, _, _ := strings.Cut(strings.TrimPrefix(c.text("member"), "serviceAccount:"), "@")
		out[account] = append(out[account], grant{role[strings.LastIndex(role, "/")+1:], strings.TrimSpace(on)})
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b grant) int { return cmp.Or(cmp.Compare(a.on, b.on), cmp.Compare(a.role, b.role)) })
	}
	return out
}

func planGrantsWhatEachNeedsAndNothingElse(t *testing.T, p *plan) {
	t.Helper()
	got := grants(p)
	calls := grant{"run.invoker", "cloud_run_v2_service errand-control"}
	for account, want := range map[string][]grant{
		"errand-agent-concierge":         {calls},
		"errand-agent-ledger":            {calls},
		"errand-agent-invoice-reconcile": {calls},
		"errand-agent-invoice-check":     {calls, {"pubsub.subscriber", "pubsub_subscription errand-pool-invoice-check"}},
		"errand-fn-intake":               {calls},
		"errand-fn-tick":                 {calls},
		"errand-fn-notify":               {{"secretmanager.secretAccessor", "secret_manager_secret errand-notify-key"}}, // it calls the outside alone
		"errand-fn-deadletter":           {calls},
		"errand-to-intake":               {{"run.invoker", "cloud_run_v2_service errand-fn-intake"}},
		"errand-to-tick":                 {{"run.invoker", "cloud_run_v2_service errand-fn-tick"}},
		"errand-to-notify":               {{"run.invoker", "cloud_run_v2_service errand-fn-notify"}},
		"errand-to-deadletter":           {{"run.invoker", "cloud_run_v2_service errand-fn-deadletter"}},
		"errand-control": {
			{"run.invoker", "cloud_run_v2_instance errand-agent-ledger"},
			{"errand_instance", "cloud_run_v2_instance errand-agent-ledger"},
			{"errand_job", "cloud_run_v2_job errand-agent-invoice-reconcile"},
			{"run.invoker", "cloud_run_v2_service errand-agent-concierge"},
			{"errand_service", "cloud_run_v2_service errand-agent-concierge"},
			{"errand_pool", "cloud_run_v2_worker_pool errand-agent-invoice-check"},
			{"datastore.user", "project"},
			{"monitoring.metricWriter", "project"},
			{"pubsub.subscriber", "pubsub_subscription errand-control"},
			{"pubsub.publisher", "pubsub_topic errand-control"},
			{"pubsub.publisher", "pubsub_topic errand-events"},
			{"pubsub.publisher", "pubsub_topic errand-pool-invoice-check"},
			{"secretmanager.secretAccessor", "secret_manager_secret errand-control-auth"},
			{"secretmanager.secretAccessor", "secret_manager_secret errand-control-metrics"},
			{"secretmanager.secretAccessor", "secret_manager_secret errand-signing-key"},
			{"iam.serviceAccountUser", "service_account projects/errand-example/serviceAccounts/errand-agent-invoice-check@errand-example.iam.gserviceaccount.com"},
		},
	} {
		slices.SortFunc(want, func(a, b grant) int { return cmp.Or(cmp.Compare(a.on, b.on), cmp.Compare(a.role, b.role)) })
		if d := gocmp.Diff(want, got[account], gocmp.AllowUnexported(grant{})); d != "" {
			t.Errorf("grants of %s (-want +plan):\n%s", account, d)
		}
	}
}

func planPushesAsTheOneThatMayCall(t *testing.T, p *plan) {
	t.Helper()
	pushes := 0
	for _, c := range p.of("pubsub_subscription") {
		account := c.text("push_config", "oidc_token", "service_account_email")
		push, _ := c.Change.After["push_config"].([]any)
		if ttl := c.text("expiration_policy", "ttl"); ttl != "" {
			t.Errorf("%s expires after %s without a receiver; want never", c.Address, ttl)
		}
		if dead, _ := c.Change.After["dead_letter_policy"].([]any); len(dead) == 0 && c.text("name") != "errand-control" && c.text("name") != "errand-deadletter" {
			t.Errorf("%s has no dead letters", c.Address)
		}
		if len(push) == 0 {
			continue
		}
		pushes++
		name, _, _ := strings.Cut(account, "@")
		if got := grants(p)[name]; len(got) != 1 || got[0].role != "run.invoker" {
			t.Errorf("%s is pushed as %q, whose grants are %v; want run.invoker on one function", c.Address, account, got)
		}
	}
	if pushes < 2 {
		t.Errorf("%d subscriptions are pushed; want those of events and of dead letters at least", pushes)
	}
}

func planTellsTheControlPlaneOfEachWorkload(t *testing.T, p *plan) {
	t.Helper()
	text, _ := p.Values.Outputs["manifests"].Value.(string)
	set, err := manifest.Parse([]manifest.File{{Name: "manifests", Data: strings.NewReader(text)}}, manifest.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatalf("the output manifests is not what errand apply takes: %v", err)
	}
	accounts := workloads(p)
	agents, targets := map[string]*fleet.Agent{}, map[string]*fleet.Target{}
	tenants := 0
	for _, o := range set.Objects {
		switch o := o.Object.(type) {
		case *fleet.Agent:
			agents[o.Name()] = o
		case *fleet.Target:
			targets[o.Name()] = o
		case *fleet.Tenant:
			tenants++
		}
	}
	if len(agents) != 4 || len(targets) != 4 || tenants != 2 {
		t.Errorf("%d agents, %d targets and %d tenants; want 4, 4 and 2", len(agents), len(targets), tenants)
	}
	for name, a := range agents {
		target := targets[name]
		if target == nil {
			t.Errorf("agent %s has no target", name)
			continue
		}
		if a.Identity == "" || a.Identity != target.Identity || accounts[target.Resource] != a.Identity {
			t.Errorf("agent %s is %q, its target %q, and the workload %s runs as %q", name, a.Identity, target.Identity, target.Resource, accounts[target.Resource])
		}
		if !slices.Contains(target.Shapes, a.Shape) || target.Capacity.Runs == 0 {
			t.Errorf("target %s has shapes %v and room for %d runs, for an agent of shape %s", name, target.Shapes, target.Capacity.Runs, a.Shape)
		}
		if len(a.Retry.On) == 0 {
			t.Errorf("agent %s has lost its retry rules on the way", name)
		}
	}
}

// planConfiguresTheControlPlane holds its environment, and the file of issuers and principals, against what reads them.
func planConfiguresTheControlPlane(t *testing.T, p *plan) {
	t.Helper()
	env := map[string]string{}
	for _, c := range p.of("cloud_run_v2_service") {
		if c.text("name") == "errand-control" {
			list, _ := block(block(c.Change.After, "template"), "containers")["env"].([]any)
			for _, e := range list {
				v, _ := e.(map[string]any)
				env[fmt.Sprint(v["name"])] = fmt.Sprint(v["value"])
			}
		}
	}
	if len(env) == 0 {
		t.Fatal("the control plane has no environment")
	}
	conf, err := config.Load(t.Context(), func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatalf("the control plane does not take its environment: %v", err)
	}
	if conf.Store != "firestore:errand-example/errand" || conf.LocalRuntime() || len(conf.SigningKeys) != 1 {
		t.Errorf("it keeps runs in %s, starts processes of its own: %t, and has %d keys", conf.Store, conf.LocalRuntime(), len(conf.SigningKeys))
	}
	text, _ := p.Values.Outputs["auth"].Value.(string)
	file, err := oidc.Read("auth.json", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oidc.New(file, oidc.Options{}); err != nil {
		t.Error(err)
	}
	role := map[string]string{}
	for _, r := range file.Principals {
		name, _, _ := strings.Cut(r.Email, "@")
		role[name] = fmt.Sprint(r.Role, r.Agents, r.Tenants)
	}
	for name, want := range map[string]string{
		"errand-agent-ledger":  "worker[ledger] []",
		"errand-fn-intake":     "submitter[] []",
		"errand-fn-deadletter": "edge[] []",
		"errand-fn-tick":       "edge[] []",
		"errand-build":         "submitter[] [default]",
		"errand-fn-notify":     "",
	} {
		if role[name] != want {
			t.Errorf("%s is %q, want %q", name, role[name], want)
		}
	}
}
