package fleet

// Runtime is what starts an attempt on a target.
type Runtime string

// The runtimes.
const (
	RuntimeLocal    Runtime = "local"    // processes on this machine
	RuntimeCloudRun Runtime = "cloudrun" // a Cloud Run resource
	RuntimeHTTP     Runtime = "http"     // any address that takes a run
	RuntimePoll     Runtime = "poll"     // workers that ask for work
)

// Target is a place where agents can run.
type Target struct {
	Meta        `json:"-"`
	Runtime     Runtime `json:"runtime"`
	Shapes      []Shape `json:"shapes,omitempty"`   // the shapes it can hold
	Resource    string  `json:"resource,omitempty"` // projects/…/jobs/x, or a URL
	Region      string  `json:"region,omitempty"`
	Accelerator string  `json:"accelerator,omitempty"`
	// Labels are what an agent's needs and preferences are compared with. They
	// hide the embedded metadata.labels, which Label also consults.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints keep away the agents that do not tolerate each of them. A taint is
	// KEY or KEY=VALUE.
	Taints  []string `json:"taints,omitempty"`
	Tenants []string `json:"tenants,omitempty"` // the tenants it serves; empty: all
	// Data lists the places whose data is at hand here, in one vocabulary with
	// needs.dataIn.
	Data     []string `json:"data,omitempty"`
	Identity string   `json:"identity,omitempty"` // the service account it runs as
	Capacity Capacity `json:"capacity,omitzero"`
	Cost     Cost     `json:"cost,omitzero"`
	Drain    bool     `json:"drain,omitempty"` // takes no new run
}

// Kind is KindTarget.
func (*Target) Kind() string { return KindTarget }

// Name is the target's name; the field is Meta.Name.
func (t *Target) Name() string { return t.Meta.Name }

// Label returns the value under the key in spec.labels or, failing that, in
// metadata.labels.
func (t *Target) Label(key string) (string, bool) {
	if v, ok := t.Labels[key]; ok {
		return v, true
	}
	v, ok := t.Meta.Labels[key]
	return v, ok
}

// Capacity is what all runs on a target may use together. Zero CPU or Memory is
// no bound; zero Runs is none either, and only a poll target may have it: there
// the workers' own slots bound it.
type Capacity struct {
	Runs   int   `json:"runs,omitempty"`
	CPU    CPU   `json:"cpu,omitempty"`
	Memory Bytes `json:"memory,omitempty"`
}

// Cost is what a run on the target costs, in dollars.
type Cost struct {
	PerRunSecondUSD float64 `json:"perRunSecondUSD,omitempty"`
	PerRunUSD       float64 `json:"perRunUSD,omitempty"`
}
