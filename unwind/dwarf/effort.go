package dwarf

import "fmt"

// The processor time of a file is bounded. A small file can have many units that share one long line program or one
// table of abbreviations, and declarations with thousands of attributes that take no bytes. So each part is charged
// each time that it is decoded: by its bytes and its attributes.

const (
	// walkStep is how much a walker decodes between two charges.
	walkStep = 64 << 10
	// readCost is the part of the cost of decoded bytes that bytes cost which are only read.
	readCost = 8
	// abbrevCost is the cost of a byte of a table of abbreviations, of which each attribute is allocated.
	abbrevCost = 8
	// headerCost is the cost of reading a unit's header, lookCost of comparing an id.
	headerCost = 64
	lookCost   = 4
)

// charge takes decoded bytes off the file's budget. It reports the first error.
func (d *Data) charge(n int64, reason string) error {
	err := d.effort.Charge(n, reason)
	if err != nil && d.options.Report != nil && !d.exceeded.Swap(true) {
		d.options.Report(fmt.Errorf("%s: %w", d.name, err))
	}
	return err
}
