package dwarf

// entry is a debugging information entry (§2.1), reduced to the attributes that look-ups need.
type entry struct {
	off      uint64
	tag      tag
	children bool
	// null is set for the entry that ends a list of children.
	null bool

	low, high, ranges  value
	name, linkage      value
	origin, spec       value
	callFile, callLine value
	entryPC            value
	sibling            value
}

// maxDepth bounds how deep entries nest.
const maxDepth = 512

// walker iterates over the entries of a unit.
type walker struct {
	unit    *unit
	abbrevs *abbrevs
	c       cursor
	e       entry

	data *Data
	// cost is the number of decoded bytes that are not charged yet. err is the error of a charge, which ends the walk.
	cost int64
	err  error
}

// charge subtracts the field cost and the parameter more from the file's budget.
func (w *walker) charge(more int64) error {
	if w.err == nil {
		w.err = w.data.charge(w.cost+more, "entries")
		w.cost = 0
	}
	return w.err
}

// wanted reports whether a walker reads the attributes of entries with this tag. The tags are those of entries that
// describe code.
func (t tag) wanted() bool {
	return t == tagSubprogram || t == tagInlinedSubroutine || t == tagLexicalBlock
}

// next reads one entry into w.e. It returns false at the end, if the data is invalid, or if the budget is exceeded.
func (w *walker) next() bool {
	if w.c.left() == 0 || w.c.bad {
		return false
	}
	if w.cost >= walkStep && w.charge(0) != nil {
		w.c.fail()
		return false
	}
	w.e = entry{off: w.c.offset()}
	begin := w.c.pos
	defer func() { w.cost += int64(w.c.pos - begin) }()
	code := w.c.uleb()
	if code == 0 {
		w.e.null = true
		return !w.c.bad
	}
	decl := w.abbrevs.find(code)
	if decl == nil {
		w.c.fail()
		return false
	}
	w.e.tag, w.e.children = decl.tag, decl.children
	if !decl.tag.wanted() {
		w.skip(decl)
		return !w.c.bad
	}
	w.read(decl)
	return !w.c.bad
}

// skip skips all attributes of an entry.
func (w *walker) skip(decl *declaration) {
	if decl.skip >= 0 {
		w.c.take(uint64(decl.skip))
		return
	}
	w.cost += int64(len(decl.attrs))
	for i := range decl.attrs {
		w.unit.skipForm(&w.c, decl.attrs[i].form)
	}
}

// read reads the attributes for which the type entry has fields.
func (w *walker) read(decl *declaration) {
	w.cost += int64(len(decl.attrs))
	for i := range decl.attrs {
		a := &decl.attrs[i]
		if to := w.e.field(a.name); to != nil {
			*to = w.unit.readForm(&w.c, a)
		} else {
			w.unit.skipForm(&w.c, a.form)
		}
	}
}

// field returns the field for an attribute; nil if entry has none.
func (e *entry) field(name attr) *value {
	switch name {
	case attrLowPC:
		return &e.low
	case attrHighPC:
		return &e.high
	case attrRanges:
		return &e.ranges
	case attrName:
		return &e.name
	case attrLinkageName, attrMIPSLinkageName:
		return &e.linkage
	case attrAbstractOrigin:
		return &e.origin
	case attrSpecification:
		return &e.spec
	case attrCallFile:
		return &e.callFile
	case attrCallLine:
		return &e.callLine
	case attrEntryPC:
		return &e.entryPC
	case attrSibling:
		return &e.sibling
	default:
		return nil
	}
}

// walk makes a walker over a unit's entries at the offsets [from, to) of .debug_info.
func (d *Data) walk(u *unit, from, to uint64) (walker, error) {
	a, err := d.abbrevs(u)
	if err != nil {
		return walker{}, err
	}
	if err := d.charge(int64(to-from)/readCost, "entries"); err != nil {
		return walker{}, err
	}
	c, err := d.sections.info.cursor(from, to-from)
	return walker{unit: u, abbrevs: a, c: c, data: d}, err
}
