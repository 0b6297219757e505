package image

import "github.com/microvmd/microvm/internal/fault"

// Until the specification lists them.
const (
	codeImageInvalid fault.Code = "image_invalid"
	codeImageInUse   fault.Code = "image_in_use"
)
