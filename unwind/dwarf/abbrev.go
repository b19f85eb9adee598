package dwarf

import "fmt"

// declaration is an abbreviation (DWARF 5 §7.5.3): the tag and the attributes of the entries that refer to it by its
// code.
type declaration struct {
	tag      tag
	children bool
	// skip is the size in bytes of all attributes together; negative: the size varies.
	skip  int
	attrs []attribute
}

// attribute is an attribute of a declaration. implicit is the value of DW_FORM_implicit_const.
type attribute struct {
	name     attr
	form     form
	implicit int64
}

// abbrevs is the table of one unit's abbreviations.
type abbrevs struct {
	// The field dense contains the declarations with the codes 1, 2, 3 … as compilers write them. The field sparse
	// contains the declarations with other codes.
	dense  []declaration
	sparse map[uint64]*declaration
	size   int
}

const (
	// maxAttributes limits the attributes of one declaration.
	maxAttributes = 4096
	// maxAbbrevs bounds the attributes of one table, all declarations together.
	maxAbbrevs = 1 << 20
	// abbrevStep is how many bytes of the section are read at first to find the table's end.
	abbrevStep = 16 << 10
	// maxAbbrevBytes bounds the size of one table.
	maxAbbrevBytes = 64 << 20
)

// find returns the declaration with a code, or nil.
func (a *abbrevs) find(code uint64) *declaration {
	if code-1 < uint64(len(a.dense)) {
		return &a.dense[code-1]
	}
	return a.sparse[code]
}

// abbrevs returns the table of a unit.
func (d *Data) abbrevs(u *unit) (*abbrevs, error) {
	key := cacheKey{d, cachedAbbrevs, u.abbrev<<4 | u.layout()}
	return cachedAs(d.cache, key, func() (*abbrevs, int, error) {
		a, err := d.readAbbrevs(u)
		if err != nil {
			return nil, 0, fmt.Errorf("abbreviations at %#x: %w", u.abbrev, err)
		}
		return a, a.size, nil
	})
}

// readAbbrevs reads a unit's table. The table's size is unknown, so each attempt reads more bytes, until they contain
// the whole table.
func (d *Data) readAbbrevs(u *unit) (*abbrevs, error) {
	for n := uint64(abbrevStep); ; n *= 4 {
		c, err := d.sections.abbrev.cursor(u.abbrev, n)
		if err != nil {
			return nil, err
		}
		a, err := parseAbbrevs(&c, u)
		if err := d.charge(abbrevCost*int64(c.pos)+int64(len(c.data))/readCost, "abbreviations"); err != nil {
			return nil, err
		}
		if !c.bad || uint64(len(c.data)) < n || n >= maxAbbrevBytes {
			return a, err
		}
	}
}

// parseAbbrevs reads declarations up to the terminating code 0.
func parseAbbrevs(c *cursor, u *unit) (*abbrevs, error) {
	a := &abbrevs{}
	total := 0
	for {
		code := c.uleb()
		if code == 0 {
			break
		}
		decl := parseDeclaration(c, u)
		if total += len(decl.attrs) + 1; total > maxAbbrevs {
			return nil, fmt.Errorf("%w: too many abbreviations", ErrTooLarge)
		}
		switch {
		case code == uint64(len(a.dense)+1):
			a.dense = append(a.dense, decl)
		case a.find(code) == nil:
			if a.sparse == nil {
				a.sparse = make(map[uint64]*declaration)
			}
			a.sparse[code] = &decl
		}
	}
	if c.bad {
		return nil, fmt.Errorf("%w: abbreviations end early", ErrMalformed)
	}
	a.size = 16*total + 48*(cap(a.dense)+2*len(a.sparse))
	return a, nil
}

// parseDeclaration reads the rest of a declaration, after its code.
func parseDeclaration(c *cursor, u *unit) declaration {
	decl := declaration{tag: tag(c.uleb()), children: c.u8() != 0}
	for !c.bad {
		at := attribute{name: attr(c.uleb()), form: form(c.uleb())}
		if at.name == 0 && at.form == 0 {
			break
		}
		if at.form == formImplicitConst {
			at.implicit = c.sleb()
		}
		if n := u.formSize(at.form); n < 0 || decl.skip < 0 {
			decl.skip = -1
		} else {
			decl.skip += n
		}
		if len(decl.attrs) == maxAttributes {
			c.fail()
		}
		decl.attrs = append(decl.attrs, at)
	}
	return decl
}

// skipDeclaration skips the rest of a declaration, after its code.
func skipDeclaration(c *cursor) {
	c.uleb()
	c.u8()
	for n := 0; !c.bad; n++ {
		name, form := c.uleb(), form(c.uleb())
		if name == 0 && form == 0 {
			break
		}
		if form == formImplicitConst {
			c.sleb()
		}
		if n == maxAttributes {
			c.fail()
		}
	}
}
