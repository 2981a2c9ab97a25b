package cloudrun

import (
	"math"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/shared/runtime"
)

// What an execution carries.
const (
	envAttempt = "ERRAND_ATTEMPT"
	envTicket  = "ERRAND_TICKET"
	envURL     = "ERRAND_URL"
	separator  = ","

	maxPacked    = 100      // attempts in one execution
	maxEnv       = 32 << 10 // bytes in the value of an environment variable
	mostTaskTime = 168 * time.Hour
)

// jobConfig is what is known of a job.
type jobConfig struct {
	containers  []string // their names
	retries     int32
	parallelism int // tasks at a time; 0 for no limit
}

func configOf(j *runpb.Job) jobConfig {
	c := jobConfig{retries: defaultRetries, parallelism: int(j.GetTemplate().GetParallelism())}
	template := j.GetTemplate().GetTemplate()
	if template.GetRetries() != nil {
		c.retries = template.GetMaxRetries()
	}
	for _, x := range template.GetContainers() {
		c.containers = append(c.containers, x.GetName())
	}
	if len(c.containers) == 0 {
		c.containers = []string{""}
	}
	return c
}

// defaultRetries is what the platform does for a job that says nothing.
const defaultRetries = 3

// packs reports whether an attempt may share an execution.
func (rt *Runtime) packs(a *runtime.Assignment) bool {
	expected := a.Agent.Lifetime.Expected.Std()
	return rt.opts.PackWindow > 0 && expected > 0 && expected <= rt.opts.PackBelow
}

// batch is attempts that are started by one call, each as a task.
type batch struct {
	job      resource
	config   jobConfig
	attempts []*attempt
	ids      int // bytes of the lists
	tickets  int
	timer    *time.Timer
	launched bool
	done     chan struct{} // closed when outcomes are there
	outcomes map[*attempt]error
}

func newBatch(x *attempt, config jobConfig) *batch {
	b := &batch{job: x.resource, config: config, done: make(chan struct{}), outcomes: make(map[*attempt]error)}
	b.add(x)
	return b
}

func (b *batch) add(x *attempt) {
	b.attempts = append(b.attempts, x)
	b.ids += len(x.a.ID()) + len(separator)
	b.tickets += len(x.a.Ticket) + len(separator)
}

// fits reports whether an attempt can join. Tasks run side by side: one that had to wait for another would wait unseen.
func (b *batch) fits(x *attempt) bool {
	return len(b.attempts) < b.most() && b.ids+len(x.a.ID()) <= maxEnv && b.tickets+len(x.a.Ticket) <= maxEnv
}

func (b *batch) full() bool { return len(b.attempts) >= b.most() }

func (b *batch) most() int {
	if p := b.config.parallelism; p > 0 {
		return min(p, maxPacked)
	}
	return maxPacked
}

// runRequest is the call that starts attempts as tasks of one execution. The platform's limit of a task is the latest
// deadline and the grace, so that control's own comes first.
func runRequest(job string, config jobConfig, attempts []*attempt, url string, now time.Time, grace time.Duration) *runpb.RunJobRequest {
	var ids, tickets []string
	var limit time.Duration
	for _, x := range attempts {
		ids, tickets = append(ids, x.a.ID()), append(tickets, x.a.Ticket)
		if d := x.a.Deadline; d != 0 {
			limit = max(limit, d.Time().Sub(now)+grace)
		} else {
			limit = mostTaskTime
		}
	}
	seconds := math.Ceil(min(max(limit, time.Second), mostTaskTime).Seconds())
	o := &runpb.RunJobRequest_Overrides{
		TaskCount: int32(len(attempts)),
		Timeout:   durationpb.New(time.Duration(seconds) * time.Second),
	}
	for _, name := range config.containers {
		o.ContainerOverrides = append(o.ContainerOverrides, &runpb.RunJobRequest_Overrides_ContainerOverride{Name: name, Env: []*runpb.EnvVar{
			variable(envAttempt, strings.Join(ids, separator)), variable(envTicket, strings.Join(tickets, separator)), variable(envURL, url),
		}})
	}
	return &runpb.RunJobRequest{Name: job, Overrides: o}
}

func variable(name, value string) *runpb.EnvVar {
	return &runpb.EnvVar{Name: name, Values: &runpb.EnvVar_Value{Value: value}}
}

// carried is the attempts of an execution, by task.
func carried(e *runpb.Execution) []string {
	for _, c := range e.GetTemplate().GetContainers() {
		for _, v := range c.GetEnv() {
			if v.GetName() == envAttempt && v.GetValue() != "" {
				return strings.Split(v.GetValue(), separator)
			}
		}
	}
	return nil
}

// match is an execution that carries some of the attempts that are looked for.
type match struct {
	execution *runpb.Execution
	ids       []string
}

// matches are the executions that carry any of the attempts, the oldest first, but those that run before those that are
// over.
func matches(executions []*runpb.Execution, wanted map[string]bool) []match {
	var found []match
	for _, e := range executions {
		ids := carried(e)
		if slices.ContainsFunc(ids, func(id string) bool { return wanted[id] }) {
			found = append(found, match{e, ids})
		}
	}
	slices.SortStableFunc(found, func(a, b match) int {
		if x, y := over(a.execution), over(b.execution); x != y {
			if x {
				return 1
			}
			return -1
		}
		return a.execution.GetCreateTime().AsTime().Compare(b.execution.GetCreateTime().AsTime())
	})
	return found
}

// over reports whether an execution has ended.
func over(e *runpb.Execution) bool {
	if e.GetCompletionTime() != nil {
		return true
	}
	c := completion(e.GetConditions())
	return c.GetState() == runpb.Condition_CONDITION_SUCCEEDED || c.GetState() == runpb.Condition_CONDITION_FAILED
}

// completion is the condition that tells how an execution or a task ended.
func completion(conditions []*runpb.Condition) *runpb.Condition {
	for _, c := range conditions {
		if c.GetType() == "Completed" {
			return c
		}
	}
	return nil
}
