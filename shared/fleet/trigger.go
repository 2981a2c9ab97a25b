package fleet

// Trigger makes runs of what arrives from outside: of the messages of a Pub/Sub
// topic, or of HTTP requests. It has exactly one source.
type Trigger struct {
	Meta   `json:"-"`
	PubSub *PubSubSource `json:"pubsub,omitempty"`
	HTTP   *HTTPSource   `json:"http,omitempty"`
	Run    TriggerRun    `json:"run"`
}

// PubSubSource is a topic of Pub/Sub.
type PubSubSource struct {
	// Topic is its name, or projects/PROJECT/topics/NAME.
	Topic string `json:"topic"`
	// MaxAttempts is how many deliveries of one message may fail before it is put
	// aside as a dead letter, by the control plane's own count.
	MaxAttempts int `json:"maxAttempts"`
}

// HTTPSource is an address that takes signed requests.
type HTTPSource struct {
	// Path is the last part of /v1/triggers/http/PATH, a name; the trigger's own
	// unless given.
	Path string `json:"path"`
	// SecretRef says where the key of the signatures is: env:NAME or file:PATH,
	// with more of them after commas while keys change.
	SecretRef string `json:"secretRef"`
}

// TriggerRun is the run that a message makes, of an agent or of a workflow. Input,
// Key and Tenant are CEL over {message}.
type TriggerRun struct {
	Agent    string `json:"agent,omitempty"`
	Workflow string `json:"workflow,omitempty"`
	// Input is the run's; message.data when empty.
	Input string `json:"input,omitempty"`
	// Key makes two messages one run; message.id when empty. The trigger's name is
	// put before it.
	Key string `json:"key,omitempty"`
	// Tenant is whom the run is for; the caller's own, or the default one, when
	// empty.
	Tenant string `json:"tenant,omitempty"`
}

// Kind is KindTrigger.
func (*Trigger) Kind() string { return KindTrigger }

// Name is the trigger's name; the field is Meta.Name.
func (t *Trigger) Name() string { return t.Meta.Name }

// defaultDeliveries of a message is what Pub/Sub itself takes for granted.
const defaultDeliveries = 5

// SetDefaults fills every unset field that has a default.
func (t *Trigger) SetDefaults() {
	if t.PubSub != nil {
		set(&t.PubSub.MaxAttempts, defaultDeliveries)
	}
	if t.HTTP != nil {
		set(&t.HTTP.Path, t.Meta.Name)
	}
}
