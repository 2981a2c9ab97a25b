package workflow

// Language makes functions of expressions.
type Language interface {
	// Compile reads an expression over variables that may be anything. The error says what is wrong where.
	Compile(source string, variables ...string) (Expression, error)
	// From turns JSON into what expressions work on.
	From(raw []byte) (any, error)
}

// Expression is a compiled expression. It is safe for concurrent use, and gives the same for the same.
type Expression interface {
	// Value is what it says as JSON says it: nil, bool, int64, uint64, float64, string, []any or map[string]any. The
	// error repeats nothing that the variables hold.
	Value(variables map[string]any) (any, error)
	// References are the places where it reads its variables.
	References() []Reference
	// Whole is the reference that it is, if it is nothing else.
	Whole() (Reference, bool)
	// Type is what its value will be: null, boolean, number, string, array or object; "" where only its evaluation tells.
	Type() string
}

// Reference is a place where an expression reads a variable, or a part of one.
type Reference struct {
	// Path is the variable's name, then fields (string) and places in lists (int64), as far as they are written down.
	Path         []any
	Tested       bool // only asked whether it is there
	Line, Column int  // from 1
}
