package fleet

// Limits of a declaration. Validate names the one that is passed.
const (
	MaxNameLength = 63   // of every name: a DNS label
	MaxTextLength = 253  // of a version, region, identity, code and the like
	MaxPathLength = 4096 // of run.dir
	MaxURLLength  = 2048
	MaxExprLength = 4096 // of a CEL expression

	MaxLabels         = 64 // in one mapping
	MaxLabelValue     = 63
	MaxListLength     = 256 // of every list that has no limit of its own
	MaxRetryRules     = 64
	MaxPreferences    = 64
	MaxCommandArgs    = 512
	MaxCommandBytes   = 64 << 10 // all arguments together
	MaxEnv            = 256
	MaxEnvBytes       = 64 << 10 // all names and values together
	MaxSchemaBytes    = 256 << 10
	MaxSlots          = 10_000
	MaxAttempts       = 1_000
	MaxRuns           = 1_000_000 // of every count of runs
	MaxCompletions    = 1_000_000 // of a job
	MaxParallelism    = 100_000   // of a job
	MaxWeight         = 10_000    // of a tenant
	MaxPriority       = 100       // of a run
	MaxSessionBytes   = 10 << 20  // of Session.MaxBytes
	MaxBackoffFactor  = 100
	MaxDeliveries     = 100 // of one message of a trigger
	MaxSecretRefs     = 4   // of one secret: the key in use and those before it
	MaxBudgetUSD      = 1e9
	MaxBudgetTokens   = int64(1e15)
	MaxDurationInDays = 3660 // of every length of time
	MaxStages         = 100
	MaxBranches       = 100    // of one stage, and cases of one route
	MaxFanOut         = 10_000 // items of one stage
	MaxRounds         = 100    // of a loop
	MaxVisits         = 100    // of one stage
	MaxFieldRules     = 100    // of one merge
	MaxApprovers      = 50     // of one gate
	MaxGateQuorum     = 20
	MaxTitleLength    = 500 // of a gate
)
