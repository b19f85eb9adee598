package dwarf

import "fmt"

// The processor time for a file is bounded. A small file can have many units that share one long line program or one
// table of abbreviations, and declarations with thousands of attributes that take no bytes. So each decoding of a part
// is charged, by the part's bytes and attributes.

const (
	// walkStep is how many bytes a walker decodes between two charges.
	walkStep = 64 << 10
	// readCost is the number of bytes that can be read at the cost of decoding one byte.
	readCost = 8
	// abbrevCost is the cost of a byte of a table of abbreviations. It is high because memory is allocated for each
	// attribute.
	abbrevCost = 8
	// headerCost is the cost of reading a unit's header, lookCost the cost of comparing the id of a unit.
	headerCost = 64
	lookCost   = 4
)

// charge subtracts the cost of decoding n bytes from the file's budget. The error wraps budget.ErrExceeded. The first
// such error also goes to Options.Report.
func (d *Data) charge(n int64, reason string) error {
	err := d.effort.Charge(n, reason)
	if err != nil && d.options.Report != nil && !d.exceeded.Swap(true) {
		d.options.Report(fmt.Errorf("%s: %w", d.name, err))
	}
	return err
}
