variable "project" {
  type        = string
  description = "Id of the project."
}

variable "location" {
  type        = string
  description = "Region of the repository."
}

variable "name" {
  type        = string
  description = "Id of the repository."
}

variable "keep" {
  type        = number
  default     = 20
  description = "Versions of each image that are kept whatever their age: an image, its signature and its SBOM are three."
}

variable "writers" {
  type        = map(string)
  default     = {}
  description = "IAM members that push, by a name for the plan."
}
