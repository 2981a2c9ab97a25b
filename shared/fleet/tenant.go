package fleet

// DefaultTenant is the tenant of whoever names none, or one never declared.
const DefaultTenant = "default"

// Tenant is a party that runs are made for.
type Tenant struct {
	Meta   `json:"-"`
	Weight int          `json:"weight"` // its share relative to the others'
	Quota  Quota        `json:"quota,omitzero"`
	Borrow Borrow       `json:"borrow,omitzero"`
	Budget TenantBudget `json:"budget,omitzero"`
	// PriorityMax is the highest priority that its runs get, 1 to 100.
	PriorityMax int `json:"priorityMax"`
}

// Kind is KindTenant.
func (*Tenant) Kind() string { return KindTenant }

// Name is the tenant's name; the field is Meta.Name.
func (t *Tenant) Name() string { return t.Meta.Name }

// Quota bounds a tenant's runs by state; 0 is no bound.
type Quota struct {
	Running int `json:"running,omitempty"`
	Queued  int `json:"queued,omitempty"`
}

// Borrow lets a tenant run up to Limit runs above its quota from the unused
// quota of the pool From. The zero Borrow is none.
type Borrow struct {
	From  string `json:"from"`
	Limit int    `json:"limit"`
}

// TenantBudget bounds what a tenant may spend per period; 0 is no bound.
type TenantBudget struct {
	USD    float64 `json:"usd,omitempty"`
	Tokens int64   `json:"tokens,omitempty"`
	Per    string  `json:"per,omitempty"` // hour | day | week | month
}
