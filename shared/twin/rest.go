package twin

import (
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The shapes of version 1, as far as gcloud looks at them. They follow Kubernetes: metadata, spec, status.
type (
	v1Object struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   v1Meta `json:"metadata"`
		Spec       any    `json:"spec"`
		Status     any    `json:"status"`
	}
	v1List struct {
		APIVersion string     `json:"apiVersion"`
		Kind       string     `json:"kind"`
		Metadata   v1ListMeta `json:"metadata"`
		Items      []v1Object `json:"items"`
	}
	v1ListMeta struct {
		Continue string `json:"continue,omitempty"`
	}
	v1Meta struct {
		Name              string            `json:"name,omitempty"`
		Namespace         string            `json:"namespace,omitempty"`
		UID               string            `json:"uid,omitempty"`
		ResourceVersion   string            `json:"resourceVersion,omitempty"`
		Generation        int64             `json:"generation,omitempty"`
		CreationTimestamp string            `json:"creationTimestamp,omitempty"`
		Labels            map[string]string `json:"labels,omitempty"`
		Annotations       map[string]string `json:"annotations,omitempty"`
	}
	v1JobSpec struct {
		Template v1Template[v1ExecutionSpec] `json:"template"`
	}
	v1ExecutionSpec struct {
		Parallelism int32                  `json:"parallelism,omitempty"`
		TaskCount   int32                  `json:"taskCount"`
		Template    v1Template[v1TaskSpec] `json:"template"`
	}
	v1Template[S any] struct {
		Metadata *v1Meta `json:"metadata,omitempty"`
		Spec     S       `json:"spec"`
	}
	v1TaskSpec struct {
		Containers         []v1Container `json:"containers"`
		MaxRetries         int32         `json:"maxRetries"`
		TimeoutSeconds     string        `json:"timeoutSeconds"`
		ServiceAccountName string        `json:"serviceAccountName"`
	}
	v1Container struct {
		Name    string   `json:"name,omitempty"`
		Image   string   `json:"image"`
		Command []string `json:"command,omitempty"`
		Args    []string `json:"args,omitempty"`
		Env     []v1Env  `json:"env,omitempty"`
	}
	v1Env struct {
		Name      string         `json:"name"`
		Value     string         `json:"value,omitempty"`
		ValueFrom *v1ValueSource `json:"valueFrom,omitempty"`
	}
	v1ValueSource struct {
		SecretKeyRef v1SecretKey `json:"secretKeyRef"`
	}
	v1SecretKey struct {
		Name string `json:"name"`
		Key  string `json:"key"`
	}
	v1Condition struct {
		Type               string `json:"type"`
		Status             string `json:"status"`
		Reason             string `json:"reason,omitempty"`
		Message            string `json:"message,omitempty"`
		LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	}
	v1JobStatus struct {
		ObservedGeneration     int64           `json:"observedGeneration"`
		Conditions             []v1Condition   `json:"conditions"`
		ExecutionCount         int32           `json:"executionCount,omitempty"`
		LatestCreatedExecution *v1ExecutionRef `json:"latestCreatedExecution,omitempty"`
	}
	v1ExecutionRef struct {
		Name                string `json:"name"`
		CreationTimestamp   string `json:"creationTimestamp,omitempty"`
		CompletionTimestamp string `json:"completionTimestamp,omitempty"`
	}
	v1ExecutionStatus struct {
		ObservedGeneration int64         `json:"observedGeneration"`
		Conditions         []v1Condition `json:"conditions"`
		StartTime          string        `json:"startTime,omitempty"`
		CompletionTime     string        `json:"completionTime,omitempty"`
		RunningCount       int32         `json:"runningCount,omitempty"`
		SucceededCount     int32         `json:"succeededCount,omitempty"`
		FailedCount        int32         `json:"failedCount,omitempty"`
		CancelledCount     int32         `json:"cancelledCount,omitempty"`
		RetriedCount       int32         `json:"retriedCount,omitempty"`
		LogURI             string        `json:"logUri,omitempty"`
	}
	v1RunJob struct {
		Overrides *struct {
			ContainerOverrides []struct {
				Name      string   `json:"name"`
				Args      []string `json:"args"`
				Env       []v1Env  `json:"env"`
				ClearArgs bool     `json:"clearArgs"`
			} `json:"containerOverrides"`
			TaskCount      int32 `json:"taskCount"`
			TimeoutSeconds int64 `json:"timeoutSeconds"`
		} `json:"overrides"`
	}
)

const apiVersion = "run.googleapis.com/v1"

// where is the location of a call. The host names the region; one that names none means the twin's own.
func (t *Twin) where(c restCall) string {
	if c.region == "" {
		return t.Parent()
	}
	return "projects/" + t.opts.Project + "/locations/" + c.region
}

func (t *Twin) restGetJob(c restCall) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j, err := t.jobs.get(t.where(c) + "/jobs/" + c.id)
	if err != nil {
		return nil, err
	}
	return t.v1Job(j), nil
}

func (t *Twin) restListJobs(c restCall) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	size, _ := strconv.ParseInt(c.query("limit"), 10, 32)
	jobs, next, err := t.jobs.list(t.where(c), int32(size), c.query("continue"))
	if err != nil {
		return nil, err
	}
	list := v1List{APIVersion: apiVersion, Kind: "JobList", Metadata: v1ListMeta{next}, Items: []v1Object{}}
	for _, j := range jobs {
		list.Items = append(list.Items, t.v1Job(j))
	}
	return list, nil
}

func (t *Twin) restRunJob(c restCall) (any, error) {
	var r v1RunJob
	if err := decode(c.body, &r); err != nil {
		return nil, err
	}
	request := &runpb.RunJobRequest{Name: t.where(c) + "/jobs/" + c.id, Overrides: r.overrides()}
	if err := t.checkName(request.GetName(), false, "jobs"); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e, _, err := t.runJob(request)
	if err != nil {
		return nil, err
	}
	return t.v1Execution(e), nil
}

// overrides is what version 2 of the API calls them.
func (r v1RunJob) overrides() *runpb.RunJobRequest_Overrides {
	if r.Overrides == nil {
		return nil
	}
	o := &runpb.RunJobRequest_Overrides{TaskCount: r.Overrides.TaskCount}
	if n := r.Overrides.TimeoutSeconds; n != 0 {
		const beyond = int64(maxTaskTimeout/time.Second) + 1 // as refused as more, and no overflow
		o.Timeout = durationpb.New(time.Duration(max(min(n, beyond), -1)) * time.Second)
	}
	for _, each := range r.Overrides.ContainerOverrides {
		change := &runpb.RunJobRequest_Overrides_ContainerOverride{Name: each.Name, Args: each.Args, ClearArgs: each.ClearArgs}
		for _, v := range each.Env {
			change.Env = append(change.Env, &runpb.EnvVar{Name: v.Name, Values: &runpb.EnvVar_Value{Value: v.Value}})
		}
		o.ContainerOverrides = append(o.ContainerOverrides, change)
	}
	return o
}

// namedExecution finds an execution by its id alone: version 1 does not name the job. It needs the lock.
func (t *Twin) namedExecution(c restCall) (*execution, error) {
	for name, e := range t.executions {
		if lastID(name) == c.id && locationOf(name) == t.where(c) {
			return e, nil
		}
	}
	return nil, notFound("Execution", c.id)
}

func (t *Twin) restGetExecution(c restCall) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, err := t.namedExecution(c)
	if err != nil {
		return nil, err
	}
	return t.v1Execution(e), nil
}

func (t *Twin) restListExecutions(c restCall) (any, error) {
	job := "-"
	if selector := c.query("labelSelector"); selector != "" {
		for _, sign := range []string{" = ", "==", "="} {
			if label, id, ok := strings.Cut(selector, sign); ok && strings.TrimSpace(label) == labelJob && resourceID.MatchString(strings.TrimSpace(id)) {
				job = strings.TrimSpace(id)
				break
			}
		}
		if job == "-" {
			return nil, status.Errorf(codes.InvalidArgument, "label selector %.100q: the twin of Cloud Run knows %s=JOB alone", selector, labelJob)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	size, _ := strconv.ParseInt(c.query("limit"), 10, 32)
	page, next, err := t.listExecutions(t.where(c)+"/jobs/"+job, int32(size), c.query("continue"))
	if err != nil {
		return nil, err
	}
	list := v1List{APIVersion: apiVersion, Kind: "ExecutionList", Metadata: v1ListMeta{next}, Items: []v1Object{}}
	for _, e := range page {
		list.Items = append(list.Items, t.v1Execution(e))
	}
	return list, nil
}

func (t *Twin) restCancel(c restCall) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, err := t.namedExecution(c)
	if err != nil {
		return nil, err
	}
	if _, err := t.cancelExecution(e); err != nil {
		return nil, err
	}
	return t.v1Execution(e), nil
}

const (
	labelJob      = "run.googleapis.com/job"
	labelLocation = "cloud.googleapis.com/location"
)

func (t *Twin) v1Job(j *runpb.Job) v1Object {
	s := v1JobStatus{ObservedGeneration: j.GetObservedGeneration(), ExecutionCount: j.GetExecutionCount()}
	s.Conditions = v1Conditions([]*runpb.Condition{j.GetTerminalCondition()})
	if ref := j.GetLatestCreatedExecution(); ref != nil {
		s.LatestCreatedExecution = &v1ExecutionRef{ref.GetName(), v1Time(ref.GetCreateTime()), v1Time(ref.GetCompletionTime())}
	}
	return v1Object{
		APIVersion: apiVersion, Kind: "Job",
		Metadata: t.v1Meta(j.GetName(), j.GetUid(), j.GetEtag(), j.GetGeneration(), j.GetCreateTime(), j.GetLabels(), j.GetAnnotations()),
		Spec: v1JobSpec{v1Template[v1ExecutionSpec]{
			Metadata: &v1Meta{Labels: j.GetTemplate().GetLabels(), Annotations: j.GetTemplate().GetAnnotations()},
			Spec:     v1Execution(j.GetTemplate()),
		}},
		Status: s,
	}
}

// v1Execution is an execution in version 1. It needs the lock.
func (t *Twin) v1Execution(e *execution) v1Object {
	m := e.message()
	o := v1Object{
		APIVersion: apiVersion, Kind: "Execution",
		Metadata: t.v1Meta(m.GetName(), m.GetUid(), m.GetEtag(), m.GetGeneration(), m.GetCreateTime(), m.GetLabels(), m.GetAnnotations()),
		Spec:     v1Execution(e.template),
		Status: v1ExecutionStatus{
			ObservedGeneration: m.GetObservedGeneration(), Conditions: v1Conditions(m.GetConditions()),
			StartTime: v1Time(m.GetStartTime()), CompletionTime: v1Time(m.GetCompletionTime()),
			RunningCount: m.GetRunningCount(), SucceededCount: m.GetSucceededCount(), FailedCount: m.GetFailedCount(),
			CancelledCount: m.GetCancelledCount(), RetriedCount: m.GetRetriedCount(), LogURI: m.GetLogUri(),
		},
	}
	o.Metadata.Labels[labelJob] = lastID(e.job)
	return o
}

func (t *Twin) v1Meta(name, uid, etag string, generation int64, created *timestamppb.Timestamp, labels, annotations map[string]string) v1Meta {
	with := func(of map[string]string, name, value string) map[string]string {
		all := map[string]string{name: value}
		for k, v := range of {
			all[k] = v
		}
		return all
	}
	return v1Meta{
		Name: lastID(name), Namespace: t.opts.Project, UID: uid, ResourceVersion: strings.Trim(etag, `"`), Generation: generation,
		CreationTimestamp: v1Time(created), Labels: with(labels, labelLocation, lastID(locationOf(name))),
		Annotations: with(annotations, "run.googleapis.com/creator", creator),
	}
}

func v1Execution(e *runpb.ExecutionTemplate) v1ExecutionSpec {
	task := v1TaskSpec{
		Containers: []v1Container{}, MaxRetries: e.GetTemplate().GetMaxRetries(), ServiceAccountName: e.GetTemplate().GetServiceAccount(),
		TimeoutSeconds: strconv.FormatInt(int64(e.GetTemplate().GetTimeout().AsDuration()/time.Second), 10),
	}
	for _, c := range e.GetTemplate().GetContainers() {
		v := v1Container{Name: c.GetName(), Image: c.GetImage(), Command: c.GetCommand(), Args: c.GetArgs()}
		for _, each := range c.GetEnv() {
			env := v1Env{Name: each.GetName(), Value: each.GetValue()}
			if ref := each.GetValueSource().GetSecretKeyRef(); ref != nil {
				env.ValueFrom = &v1ValueSource{v1SecretKey{Name: ref.GetSecret(), Key: ref.GetVersion()}}
			}
			v.Env = append(v.Env, env)
		}
		task.Containers = append(task.Containers, v)
	}
	return v1ExecutionSpec{Parallelism: e.GetParallelism(), TaskCount: e.GetTaskCount(), Template: v1Template[v1TaskSpec]{Spec: task}}
}

func v1Conditions(cs []*runpb.Condition) []v1Condition {
	all := make([]v1Condition, len(cs))
	for i, c := range cs {
		v := v1Condition{Type: c.GetType(), Status: "Unknown", Message: c.GetMessage(), LastTransitionTime: v1Time(c.GetLastTransitionTime())}
		switch c.GetState() {
		case runpb.Condition_CONDITION_SUCCEEDED:
			v.Status = "True"
		case runpb.Condition_CONDITION_FAILED:
			v.Status = "False"
		}
		switch {
		case c.GetExecutionReason() != runpb.Condition_EXECUTION_REASON_UNDEFINED:
			v.Reason = camel(c.GetExecutionReason().String())
		case c.GetReason() != runpb.Condition_COMMON_REASON_UNDEFINED:
			v.Reason = camel(c.GetReason().String())
		}
		all[i] = v
	}
	return all
}

// camel is NON_ZERO_EXIT_CODE as NonZeroExitCode.
func camel(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(strings.ToLower(name), "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

func v1Time(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return at.AsTime().UTC().Format("2006-01-02T15:04:05.000000Z")
}
