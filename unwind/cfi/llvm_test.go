package cfi

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/arch"
)

// The second oracle is llvm-dwarfdump, if it is installed. It prints two things that readelf does not: the operations
// of expressions, and the difference between an undefined register and a register without a rule.
//
// Its known errors:
//
//	CFA after DW_CFA_restore_state   LLVM 14 restores the registers' rules but not the CFA's,
//	                                 against DWARF 5 §6.4.2.4: not compared in such FDEs.

func TestOracleLLVM(t *testing.T) {
	if arch.Host() != arch.AMD64 {
		t.Skip("knows llvm-dwarfdump's names of x86-64 registers only")
	}
	needTool(t, "llvm-dwarfdump")
	var rows, cfas atomic.Int64
	t.Run("files", func(t *testing.T) {
		files := oracleFiles(t)
		if raceEnabled && os.Getenv("PGSB_ORACLE_SLOW") == "" {
			t.Log("with the race detector: small files only")
			files = existing(t, smallFiles())
		}
		selected := figure.Share(t, max(1, min(4, len(files))))
		for i, path := range files {
			if !selected(i) {
				continue
			}
			t.Run(filepath.Base(path), func(t *testing.T) {
				t.Parallel()
				o := llvmComparison{comparison: comparison{t: t, table: load(t, path), path: path}}
				o.run()
				t.Logf("%s: %d rows, %d of them with CFA", path, o.rows, o.cfas)
				rows.Add(int64(o.rows))
				cfas.Add(int64(o.cfas))
			})
		}
	})
	figure.Printf(t, "equal to llvm-dwarfdump: %d rows, %d of them with CFA", rows.Load(), cfas.Load())
}

type llvmComparison struct {
	comparison

	end      uint64 // of the FDE being read
	restored bool   // the FDE being read restores a state
	pending  string // its last row, which another of the same address may replace
	cfas     int
}

var llvmFDE = regexp.MustCompile(`FDE cie=[0-9a-f]+ pc=[0-9a-f]+\.\.\.([0-9a-f]+)$`)

func (o *llvmComparison) run() {
	cmd := exec.Command("llvm-dwarfdump", "--eh-frame", o.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		o.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		o.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.Contains(line, " FDE cie="):
			o.flush()
			o.restored = false
			o.end = 0
			if m := llvmFDE.FindStringSubmatch(line); m != nil {
				o.end = o.hex(m[1])
			}
		case strings.HasPrefix(line, "  DW_CFA_restore_state"):
			o.restored = true
		case strings.HasPrefix(line, "  0x"):
			if end := strings.IndexByte(line, ':'); end < 0 || !strings.HasPrefix(o.pending, line[:end+1]) {
				o.flush()
			}
			o.pending = line
		}
	}
	o.flush()
	if err := lines.Err(); err != nil {
		o.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		o.t.Fatalf("llvm-dwarfdump %s: %v", o.path, err)
	}
}

func (o *llvmComparison) hex(s string) uint64 {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		o.t.Fatalf("llvm-dwarfdump: %q: %v", s, err)
	}
	return v
}

// flush compares the row that has been read.
func (o *llvmComparison) flush() {
	if o.pending == "" {
		return
	}
	address, want, ok := strings.Cut(strings.TrimPrefix(o.pending, "  0x"), ": ")
	o.pending = ""
	if !ok {
		return
	}
	addr := o.hex(address)
	if addr >= o.end {
		return // a row behind the function's end says nothing
	}
	row, err := o.table.Row(addr)
	if err != nil {
		o.errorf("%#x: %v", addr, err)
		return
	}
	got := llvmRowText(&row)
	o.rows++
	if o.restored {
		_, want, _ = strings.Cut(want, ": ")
		_, got, _ = strings.Cut(got, ": ")
	} else {
		o.cfas++
	}
	if got != want {
		o.errorf("%#x:\n  %s, llvm-dwarfdump\n  %s", addr, got, want)
	}
}

// llvmRowText prints a row as llvm-dwarfdump does.
func llvmRowText(row *Row) string {
	cfa := expressionText(row.Expression(row.CFA))
	if row.CFA.Kind == RuleRegister {
		cfa = llvmName(int(row.CFA.Register)) + llvmOffset(row.CFA.Offset)
	}
	var rules []string
	for _, rule := range row.Rules() {
		rules = append(rules, llvmName(int(rule.Column))+"="+llvmRuleText(row, rule))
	}
	text := "CFA=" + cfa
	if len(rules) > 0 {
		text += ": "
	}
	return text + strings.Join(rules, ", ")
}

func llvmRuleText(row *Row, rule Rule) string {
	switch rule.Kind {
	case RuleUndefined:
		return "undefined"
	case RuleSameValue:
		return "same"
	case RuleOffset:
		return "[CFA" + llvmOffset(rule.Offset) + "]"
	case RuleValOffset:
		return "CFA" + llvmOffset(rule.Offset)
	case RuleRegister:
		return llvmName(int(rule.Register))
	case RuleExpression:
		return "[" + expressionText(row.Expression(rule)) + "]"
	case RuleValExpression:
		return expressionText(row.Expression(rule))
	case RuleUnspecified:
	}
	return "unspecified"
}

func llvmOffset(offset int64) string {
	if offset == 0 {
		return ""
	}
	if offset < 0 {
		return strconv.FormatInt(offset, 10)
	}
	return "+" + strconv.FormatInt(offset, 10)
}

func llvmName(column int) string {
	return strings.ToUpper(readelfName(column))
}

// expressionText disassembles the operations that real files hold, as
// llvm-dwarfdump prints them.
func expressionText(expr []byte) string {
	names := map[byte]string{
		opDeref: "deref", opAnd: "and", opMul: "mul", opPlus: "plus", opMinus: "minus",
		opShl: "shl", opGe: "ge", opDup: "dup", opDrop: "drop", opOr: "or",
	}
	r := reader{data: expr}
	var ops []string
	for r.more() {
		op := r.u8()
		var text string
		switch {
		case op >= opLit0 && op <= opLit31:
			text = fmt.Sprintf("lit%d", op-opLit0)
		case op >= opBreg0 && op <= opBreg31:
			text = fmt.Sprintf("breg%d %s%+d", op-opBreg0, llvmName(int(op-opBreg0)), r.sleb())
		case op == opPlusUconst:
			text = fmt.Sprintf("plus_uconst %#x", r.uleb())
		case op == opConst1u:
			text = fmt.Sprintf("const1u %#x", r.u8())
		case names[op] != "":
			text = names[op]
		default:
			text = fmt.Sprintf("unknown %#x", op)
		}
		ops = append(ops, "DW_OP_"+text)
	}
	return strings.Join(ops, ", ")
}
