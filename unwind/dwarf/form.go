package dwarf

import "fmt"

// value is an attribute's value as stored in the entry: a number, an offset or an index, depending on its form. The
// zero value means that the entry has no such attribute.
type value struct {
	form form
	u    uint64
	s    string // of DW_FORM_string
}

func (v *value) ok() bool { return v.form != 0 }

// Special results of formSize.
const (
	sizeVaries  = -1
	sizeUnknown = -2
)

// formSize returns the size of a form in bytes, sizeVaries or sizeUnknown.
func (u *unit) formSize(f form) int {
	switch f {
	case formFlagPresent, formImplicitConst:
		return 0
	case formData1, formFlag, formRef1, formStrx1, formAddrx1:
		return 1
	case formData2, formRef2, formStrx2, formAddrx2:
		return 2
	case formStrx3, formAddrx3:
		return 3
	case formData4, formRef4, formStrx4, formAddrx4, formRefSup4:
		return 4
	case formData8, formRef8, formRefSig8, formRefSup8:
		return 8
	case formData16:
		return 16
	case formAddr:
		return int(u.addrSize)
	case formRefAddr:
		if u.version <= 2 {
			return int(u.addrSize)
		}
		return u.offsetSize()
	case formStrp, formSecOffset, formLineStrp, formStrpSup, formGNURefAlt, formGNUStrpAlt:
		return u.offsetSize()
	case formString, formSdata, formUdata, formRefUdata, formStrx, formAddrx, formLoclistx, formRnglistx,
		formGNUAddrIndex, formGNUStrIndex, formBlock, formBlock1, formBlock2, formBlock4, formExprloc, formIndirect:
		return sizeVaries
	default:
		return sizeUnknown
	}
}

// skipForm skips a value.
func (u *unit) skipForm(c *cursor, f form) {
	if n := u.formSize(f); n >= 0 {
		c.take(uint64(n))
		return
	}
	switch f {
	case formString:
		c.skipStr()
	case formBlock, formExprloc:
		c.take(c.uleb())
	case formBlock1:
		c.take(uint64(c.u8()))
	case formBlock2:
		c.take(uint64(c.u16()))
	case formBlock4:
		c.take(uint64(c.u32()))
	case formIndirect:
		if f = form(c.uleb()); f == formIndirect || f == formImplicitConst {
			c.fail() // forbidden by DWARF 5 §7.5.3
			return
		}
		u.skipForm(c, f)
	case formSdata, formUdata, formRefUdata, formStrx, formAddrx, formLoclistx, formRnglistx,
		formGNUAddrIndex, formGNUStrIndex:
		c.uleb()
	default:
		c.fail()
	}
}

// readForm reads a value. For a block it returns only the form.
func (u *unit) readForm(c *cursor, a *attribute) value {
	v := value{form: a.form}
	if v.form == formIndirect {
		if v.form = form(c.uleb()); v.form == formIndirect || v.form == formImplicitConst {
			c.fail()
			return v
		}
	}
	switch n := u.formSize(v.form); {
	case v.form == formImplicitConst:
		v.u = uint64(a.implicit)
	case v.form == formFlagPresent:
		v.u = 1
	case n >= 0 && n <= 8:
		v.u = c.uint(n)
	case v.form == formString:
		v.s = c.str()
	case v.form == formSdata:
		v.u = uint64(c.sleb())
	case n == sizeVaries && !v.block():
		v.u = c.uleb()
	default:
		u.skipForm(c, v.form)
	}
	return v
}

// block reports whether the value is a block of bytes.
func (v *value) block() bool {
	switch v.form {
	case formBlock, formBlock1, formBlock2, formBlock4, formExprloc:
		return true
	default:
		return false
	}
}

// isAddress reports whether the value is an address.
func (v *value) isAddress() bool {
	switch v.form {
	case formAddr, formAddrx, formAddrx1, formAddrx2, formAddrx3, formAddrx4, formGNUAddrIndex:
		return true
	default:
		return false
	}
}

// text returns the string that a value contains or refers to.
func (d *Data) text(u *unit, v value) (string, error) {
	switch v.form {
	case formString:
		return v.s, nil
	case formStrp:
		return d.sections.str.str(v.u)
	case formLineStrp:
		return d.sections.lineStr.str(v.u)
	case formGNUStrpAlt, formStrpSup:
		if d.sup == nil {
			return "", fmt.Errorf("string %#x: %w", v.u, ErrNoSupplement)
		}
		return d.sup.sections.str.str(v.u)
	case formStrx, formStrx1, formStrx2, formStrx3, formStrx4, formGNUStrIndex:
		off, err := d.sections.strOffsets.uint(u.strBase, v.u, u.offsetSize())
		if err != nil {
			return "", err
		}
		return d.sections.str.str(off)
	default:
		return "", fmt.Errorf("%w: form %#x is no string", ErrMalformed, uint32(v.form))
	}
}

// address returns the address that a value contains or refers to.
func (d *Data) address(u *unit, v value) (uint64, error) {
	switch v.form {
	case formAddr:
		return v.u, nil
	case formAddrx, formAddrx1, formAddrx2, formAddrx3, formAddrx4, formGNUAddrIndex:
		return d.addrs().uint(u.addrBase, v.u, int(u.addrSize))
	default:
		return 0, fmt.Errorf("%w: form %#x is no address", ErrMalformed, uint32(v.form))
	}
}

// reference returns the file and the offset of the entry that a value points to.
func (d *Data) reference(u *unit, v value) (*Data, uint64, error) {
	switch v.form {
	case formRef1, formRef2, formRef4, formRef8, formRefUdata:
		if v.u >= u.end-u.off {
			return nil, 0, fmt.Errorf("%w: reference %#x leaves its unit", ErrMalformed, v.u)
		}
		return d, u.off + v.u, nil
	case formRefAddr:
		return d, v.u, nil
	case formGNURefAlt, formRefSup4, formRefSup8:
		if d.sup == nil {
			return nil, 0, fmt.Errorf("entry %#x: %w", v.u, ErrNoSupplement)
		}
		return d.sup, v.u, nil
	default:
		return nil, 0, fmt.Errorf("%w: form %#x is no reference", ErrMalformed, uint32(v.form))
	}
}
