/* Functions written by hand that say nothing of their frames. Each calls the function that its argument points to. */
	.text

/* The usual frame pointer. */
	.globl	framed_nocfi
	.type	framed_nocfi, @function
framed_nocfi:
	push	%rbp
	mov	%rsp, %rbp
	sub	$32, %rsp
	call	*%rdi
	leave
	ret
	.size	framed_nocfi, .-framed_nocfi

/* No frame pointer: only reading the code tells where the return address is. */
	.globl	frameless_nocfi
	.type	frameless_nocfi, @function
frameless_nocfi:
	sub	$40, %rsp
	call	*%rdi
	add	$40, %rsp
	ret
	.size	frameless_nocfi, .-frameless_nocfi

	.section .note.GNU-stack,"",@progbits
