#include "textflag.h"

// noteSender is a signal handler. It gets the signal in DI, its siginfo in SI, the context in DX,
// and leaves all three as they are for the handler to which it jumps.
TEXT ·noteSender(SB), NOSPLIT|NOFRAME, $0
	MOVL 8(SI), AX // si_code
	MOVL DI, CX
	LEAQ ·senders(SB), R8
	MOVL AX, (R8)(CX*4)
	MOVQ ·goHandler(SB), AX
	JMP  AX

DATA ·noteSenderAddress(SB)/8, $·noteSender(SB)
GLOBL ·noteSenderAddress(SB), NOPTR, $8
