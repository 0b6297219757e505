package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	middleware "github.com/oapi-codegen/nethttp-middleware"

	"github.com/microvmd/microvm/api"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// loadSpecification reads the routes and the checks from the specification.
func (s *server) loadSpecification() error {
	checkBase64()
	document, err := openapi3.NewLoader().LoadFromData(api.Specification)
	if err != nil {
		return fmt.Errorf("load specification: %w", err)
	}
	document.Servers = nil // else the validator compares Host
	// For 3.1 the validator would compile a JSON Schema at each request and say
	// of a violation neither limit nor field in a form that can be used. Request
	// schemas keep to what 3.0 and 3.1 share; TestRequestSchemas holds them to it.
	document.OpenAPI = "3.0.3"
	s.routes = map[string]route{}
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			s.routes[method+" "+path] = describe(document, item, operation)
			// The validator reads the whole body before it asks about a key.
			operation.Security = openapi3.NewSecurityRequirements()
		}
	}
	document.Security = nil
	whole := s.validator(document, openapi3filter.Options{})
	header := s.validator(document, openapi3filter.Options{ExcludeRequestBody: true})
	s.check = func(next http.Handler) http.Handler {
		checked, streamed := whole(next), header(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s.routes[exchangeOf(r.Context()).pattern].json {
				checked.ServeHTTP(w, r) // holds the body in memory
			} else {
				streamed.ServeHTTP(w, r)
			}
		})
	}
	return nil
}

// checkBase64 makes the validator as strict as the decoder behind it, which would
// not say where it fails.
var checkBase64 = sync.OnceFunc(func() {
	openapi3.DefineStringFormatValidator("byte", openapi3.NewCallbackValidator(func(text string) error {
		_, err := base64.StdEncoding.DecodeString(text)
		return err
	}))
})

func describe(document *openapi3.T, item *openapi3.PathItem, operation *openapi3.Operation) route {
	r := route{query: map[string]bool{}, bytes: map[string]bool{}}
	for _, list := range []openapi3.Parameters{item.Parameters, operation.Parameters} {
		for _, parameter := range list {
			if parameter.Value.In == openapi3.ParameterInQuery {
				r.query[parameter.Value.Name] = true
				_, r.bytes[parameter.Value.Name] = parameter.Value.Extensions["x-any-bytes"]
			}
		}
	}
	security := document.Security
	if operation.Security != nil {
		security = *operation.Security
	}
	r.keyless = len(security) == 0
	for _, way := range security {
		for name := range way {
			if scheme := document.Components.SecuritySchemes[name].Value; scheme.In == openapi3.ParameterInQuery {
				r.ticket, r.query[scheme.Name] = true, true
			}
		}
	}
	if operation.RequestBody != nil {
		content := operation.RequestBody.Value.Content
		r.json = content["application/json"] != nil
		r.bodied = operation.RequestBody.Value.Required
		r.stream = content[octets] != nil
		r.types = append([]string{octets}, otherTypes(operation.RequestBody.Value)...)
	}
	return r
}

const octets = "application/octet-stream"

// otherTypes are those that a streamed body may have, too. Generated code has
// room for one.
func otherTypes(body *openapi3.RequestBody) []string {
	var types []string
	list, _ := body.Extensions["x-other-types"].([]any)
	for _, one := range list {
		types = append(types, fmt.Sprint(one))
	}
	return types
}

func (s *server) validator(document *openapi3.T, options openapi3filter.Options) func(http.Handler) http.Handler {
	options.SkipSettingDefaults = true // zero values say the same, see sandbox.Spec
	return middleware.OapiRequestValidatorWithOptions(document, &middleware.Options{
		Options:               options,
		DiscardValidatedValue: true, // the decoder of gen reads the body itself
		ErrorHandlerWithOpts: func(_ context.Context, err error, w http.ResponseWriter, r *http.Request, _ middleware.ErrorHandlerOpts) {
			s.fail(w, r, invalid(err))
		},
	})
}

// invalid turns what the validator says into a fault that names the parameter.
// The validator's own text holds the caller's values: it is neither sent nor logged.
func invalid(err error) error {
	var request *openapi3filter.RequestError
	if !errors.As(err, &request) {
		return fault.New(fault.RouteNotFound, "no such route; /openapi.yaml lists those that exist")
	}
	name := ""
	if request.Parameter != nil {
		name = request.Parameter.Name
	}
	if errors.Is(err, openapi3filter.ErrInvalidRequired) || errors.Is(err, openapi3filter.ErrInvalidEmptyValue) {
		if name == "" {
			return fault.New(fault.BodyInvalid, "the body is missing; send one JSON object")
		}
		return missing(name)
	}
	var schema *openapi3.SchemaError
	if errors.As(err, &schema) {
		return violation(name, schema)
	}
	if name != "" {
		return fault.Param(name, "%s has not the form that it needs; %s", name, expect(request.Parameter.Schema))
	}
	return fault.New(fault.BodyInvalid, "the body is not what this route takes; see /openapi.yaml")
}

func missing(name string) error {
	return &fault.Error{Code: fault.ParameterMissing, Param: name, Message: name + " is missing; add it to the request"}
}

// violation words one broken keyword of a schema. query is the name of the
// parameter, or "" for the body.
func violation(query string, broken *openapi3.SchemaError) error {
	for { // the innermost one says most
		var inner *openapi3.SchemaError
		if broken.Origin == nil || !errors.As(broken.Origin, &inner) {
			break
		}
		broken = inner
	}
	name := query
	if at := printable(fieldName(broken.JSONPointer())); query == "" {
		name = at
	}
	if broken.SchemaField == "required" {
		return missing(name)
	}
	if unknown, ok := unknownField(broken); ok {
		name = strings.TrimPrefix(name+"."+unknown, ".")
		return fault.Param(name, "there is no field %q here; leave it out, or see /openapi.yaml for those that exist", name)
	}
	if name == "" {
		return fault.New(fault.BodyInvalid, "the body must be one JSON object; see /openapi.yaml for its fields")
	}
	return fault.Param(name, "%s %s", name, must(broken))
}

// unknownField is the first field, by name, that an object's schema does not have.
func unknownField(broken *openapi3.SchemaError) (string, bool) {
	if broken.SchemaField != "properties" && broken.SchemaField != "additionalProperties" {
		return "", false
	}
	object, _ := broken.Value.(map[string]any)
	first, found := "", false
	for name := range object {
		if broken.Schema.Properties[name] == nil && (!found || name < first) {
			first, found = name, true
		}
	}
	return printable(first), found
}

// must says what a value must be, from the schema and never from the value.
func must(broken *openapi3.SchemaError) string {
	schema := broken.Schema
	switch broken.SchemaField {
	case "minimum", "maximum":
		return "must be " + span(schema)
	case "minLength":
		if schema.MinLength == 1 {
			return "must not be empty"
		}
		return fmt.Sprintf("must have at least %d characters", schema.MinLength)
	case "maxLength":
		return fmt.Sprintf("must have at most %d characters", *schema.MaxLength)
	case "maxItems":
		return fmt.Sprintf("must have at most %d items", *schema.MaxItems)
	case "maxProperties":
		return fmt.Sprintf("must have at most %d entries", *schema.MaxProps)
	case "pattern":
		return "must match " + schema.Pattern
	case "enum":
		return "must be one of " + choices(schema)
	case "format":
		if schema.Format == "byte" {
			return "must be standard base64 with padding"
		}
		return "must be a " + schema.Format
	default:
		return "must be " + article(schema)
	}
}

func span(schema *openapi3.Schema) string {
	switch {
	case schema.Min != nil && schema.Max != nil:
		return fmt.Sprintf("%.0f to %.0f", *schema.Min, *schema.Max)
	case schema.Min != nil:
		return fmt.Sprintf("at least %.0f", *schema.Min)
	case schema.Max != nil:
		return fmt.Sprintf("at most %.0f", *schema.Max)
	default:
		return "a number"
	}
}

func choices(schema *openapi3.Schema) string {
	list := make([]string, 0, len(schema.Enum))
	for _, value := range schema.Enum {
		list = append(list, fmt.Sprint(value))
	}
	return strings.Join(list, ", ")
}

func article(schema *openapi3.Schema) string {
	kinds := schema.Type.Slice()
	if len(kinds) != 1 {
		return "of another type; see /openapi.yaml"
	}
	if strings.ContainsAny(kinds[0][:1], "aeio") {
		return "an " + kinds[0]
	}
	return "a " + kinds[0]
}

func expect(ref *openapi3.SchemaRef) string {
	if ref == nil || ref.Value == nil {
		return "see /openapi.yaml"
	}
	return "it must be " + article(ref.Value)
}

// failDecode replies to what the generated decoders refuse. After the
// validator only little is left: numbers that fit no int.
func (s *server) failDecode(w http.ResponseWriter, r *http.Request, err error) {
	s.fail(w, r, undecodable(err))
}

// undecodable words what a decoder refuses.
func undecodable(err error) error {
	var (
		known    *fault.Error
		many     *gen.TooManyValuesForParamError
		format   *gen.InvalidParamFormatError
		required *gen.RequiredParamError
		unfit    *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &required):
		return missing(required.ParamName)
	case errors.As(err, &format):
		return fault.Param(format.ParamName, "%s has not the form that it needs; see /openapi.yaml", format.ParamName)
	case errors.As(err, &unfit) && unfit.Field != "":
		return fault.Param(unfit.Field, "%s is no %s that fits; see /openapi.yaml for its range", unfit.Field, unfit.Type)
	case errors.As(err, &many):
		return fault.Param(many.ParamName, "%s came %d times; send it once", many.ParamName, many.Count)
	default:
		return fault.New(fault.BodyInvalid, "the body is not what this route takes; see /openapi.yaml")
	}
}
