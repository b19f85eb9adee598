/* A function whose call frame information ends before it goes on in the next one, over what aligns that, as the checks
   before memcpy do in the GNU C library. The process sleeps in between. */
	.text
	.globl	falls
	.type	falls, @function
falls:
	.cfi_startproc
	endbr64
	.cfi_endproc
	.size	falls, .-falls
	lea	line(%rip), %rsi
	mov	$5, %edx
	mov	$1, %edi
	mov	$1, %eax	/* write */
	syscall
	mov	$34, %eax	/* pause */
	syscall
	.p2align 6
	.globl	into
	.type	into, @function
into:
	.cfi_startproc
	sub	$40, %rsp
	.cfi_def_cfa_offset 48
	add	$40, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	into, .-into

	.section .rodata
line:
	.ascii	"here\n"

	.section .note.GNU-stack,"",@progbits
